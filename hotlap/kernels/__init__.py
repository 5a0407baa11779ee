"""Kernels of our own for GPUs, with the compiler they are made by at run time; for the catalogue and the engine."""
