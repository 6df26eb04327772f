"""Searches proposals for the fastest plan that the compiler finds within a limit, and one cap."""
