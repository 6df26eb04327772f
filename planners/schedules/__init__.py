"""Unrestricted schedules: how far regions are from the best."""
