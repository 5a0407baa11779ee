"""CUDA C++ compiled, kept and launched at run time."""
