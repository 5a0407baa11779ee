"""The report of a tune: what was tried, what is kept, and on what evidence."""
