"""Compiles for a target and says how many bytes it takes."""
