"""Batch normalisation in channels-last, with the activation behind it, by kernels of our own."""
