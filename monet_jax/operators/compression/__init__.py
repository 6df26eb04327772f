"""Lossy compression of operands and of local derivatives."""
