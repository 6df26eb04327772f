"""Predicts the bytes of temporaries that XLA will assign, without compiling."""
