"""Trials: fresh processes of the unmodified command, with choices applied, measured, and with writes diverted."""
