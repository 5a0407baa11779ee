"""One file of source, read once: its functions, loops, guards and calls, and what each expression may be."""
