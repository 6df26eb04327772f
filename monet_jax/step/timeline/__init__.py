"""What is live in a whole step over time, and its picture."""
