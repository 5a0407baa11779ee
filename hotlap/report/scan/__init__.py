"""The report of a scan."""
