"""The findings of a scan."""
