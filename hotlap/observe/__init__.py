"""What runs in the user's process to see where its time goes, and what watches it from outside."""
