"""The report of what a run decided while it trained."""
