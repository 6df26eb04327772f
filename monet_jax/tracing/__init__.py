"""From a function to a program in stages."""
