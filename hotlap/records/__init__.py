"""The records that pass between stages: frozen, plain, saved as JSON. Standard library only."""
