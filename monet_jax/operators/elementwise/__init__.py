"""Elementwise functions whose derivatives read fewer bytes."""
