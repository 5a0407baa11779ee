"""Which optimisations are on in the user's process: by a plan, as decided while it trains, or by `hotlap.enable`."""
