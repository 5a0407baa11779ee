"""Resolves names across all files: which definition a name means, and what a value from elsewhere is."""
