"""The search of `Gap`: integer programs on grids of backward events."""
