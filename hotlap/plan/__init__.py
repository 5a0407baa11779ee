"""Turns what the user requests into what is applied: order, conflicts, risk policy."""
