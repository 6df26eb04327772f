"""Flat programs of JAX equations, and what each primitive is and costs."""
