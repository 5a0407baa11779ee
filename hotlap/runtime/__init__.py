"""What an optimisation uses in the user's process: its site, root discovery, rehearsals, loader arguments."""
