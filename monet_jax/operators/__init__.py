"""Operators: other ways to run the backward of an equation, from residuals of fewer bytes."""
