"""The planner behind `remat`: regions of stages."""
