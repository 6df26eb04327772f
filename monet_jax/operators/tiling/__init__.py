"""Equations that run tile by tile: losses over a vocabulary, attention."""
