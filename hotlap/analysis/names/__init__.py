"""Looks at all files together: which definition a name means, and what a value that came from elsewhere is."""
