"""What a comparison shows."""
