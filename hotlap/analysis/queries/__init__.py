"""What the rules of a scan ask of the source: loaders, samples, copies, host syncs, passes over data."""
