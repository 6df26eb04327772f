"""The search behind `Stages`: single stages first, regions of several where those do not do."""
