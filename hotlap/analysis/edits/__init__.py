"""Repairs source code without changing its formatting or comments."""
