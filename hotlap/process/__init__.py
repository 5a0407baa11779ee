"""Commands as processes: how they are started, waited for, limited, and ended with all that they started."""
