"""Rematerialization planners over plain graphs: bytes and seconds in, a plan out; no JAX."""
