"""Which optimisations are on in the user's process: set by a plan, decided while it trains, or by `hotlap.enable`."""
