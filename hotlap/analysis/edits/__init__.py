"""Repairs of source, which keep its formatting and comments."""
