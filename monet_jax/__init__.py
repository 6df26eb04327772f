"""Fits JAX training into memory: a byte budget in, the fastest program that keeps it out."""
