from hotlap.patch.signals import raised_by_signal

__all__ = ["raised_by_signal"]
