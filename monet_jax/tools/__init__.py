"""The largest size that fits, sweeps over budgets, and checks and differences of plans."""
