"""The regions that a plan may be made of."""
