"""Proposes plans and lets the compiler judge."""
