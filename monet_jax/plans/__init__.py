"""A plan as a frozen record, as JSON, in a cache."""
