"""Answers what the rules of a scan ask about source code: loaders, samples, copies, host syncs, passes over data."""
