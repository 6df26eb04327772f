"""The updates of a step: which results belong to which gradients, in which order, and where."""
