"""Finds the fastest plan of a function whose compiled temporaries keep a limit."""
