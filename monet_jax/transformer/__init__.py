"""From a program in stages and its regions to a JAX function."""
