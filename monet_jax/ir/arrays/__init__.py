"""Which values of a flat program XLA writes to memory as arrays, beside what is never fused."""
