"""What an op takes on a target: measured, the compiler's estimate, or a roofline."""
