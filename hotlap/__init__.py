"""hotlap makes PyTorch training fast and proves it."""

from hotlap.observe.span import span

__all__ = ["__version__", "span"]
__version__ = "0.1.0"
