"""Benchmarks: plans against `jax.checkpoint` on models, and planners on published problems."""
