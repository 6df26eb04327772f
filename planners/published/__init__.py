"""Planners of papers, for comparison."""
