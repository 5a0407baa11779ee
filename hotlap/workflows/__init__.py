"""What each verb does: one file each, which reads as the order of its stages."""
