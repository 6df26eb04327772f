"""The effect of a region: its cost, whatever the rest of the plan."""
