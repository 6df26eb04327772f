"""What one stage may save: an integer program solved for fewer and fewer bytes."""
