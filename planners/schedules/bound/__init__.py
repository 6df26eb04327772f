"""The relaxation behind `lower_bound`: its variables and its constraints."""
