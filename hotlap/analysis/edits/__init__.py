"""Repairs source code and keeps its formatting and comments."""
