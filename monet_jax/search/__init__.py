"""Proposes plans and lets the compiler judge, within one cap on compilations and seconds."""
