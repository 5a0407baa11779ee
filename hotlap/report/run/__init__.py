"""What a run has decided while it trained."""
