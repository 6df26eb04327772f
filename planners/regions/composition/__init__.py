"""The fastest plan that candidates make up: an integer program."""
