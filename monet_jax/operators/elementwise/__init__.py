"""Elementwise functions whose derivatives are computed from fewer bytes."""
