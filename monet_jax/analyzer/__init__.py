"""From a program in stages to a planning graph: ops, bytes, seconds."""
