"""What each command does: one file per command, which reads as the order of its stages."""
