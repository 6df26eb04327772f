"""The sizes of a step's arguments: the bytes at each, the largest that fits, the fastest pair."""
