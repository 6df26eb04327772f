"""Questions asked of plans: fit, sweep, check, diff."""
