"""In a file of its own, so that a room can name it without importing the whole package."""

__version__ = "0.1.0"
