"""DataLoaders and datasets: what fetching depends on, and whether it is known to be pure."""
