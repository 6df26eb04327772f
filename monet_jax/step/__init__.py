"""Whole training steps: what is marked in them is planned, and the compiled step is judged."""
