"""Reads one file of source once: its functions, loops, guards and calls, and what each expression may be."""
