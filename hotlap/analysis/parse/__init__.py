"""Reads a source file once: its functions, loops, guards and calls, and what each expression may be."""
