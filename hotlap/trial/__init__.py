"""Trials: fresh processes of the unmodified command, each with its choices applied, measured and kept from writing."""
