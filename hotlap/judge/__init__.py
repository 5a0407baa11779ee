"""Statistics: from raw samples to a figure with its uncertainty."""
