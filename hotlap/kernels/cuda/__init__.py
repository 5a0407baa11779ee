"""CUDA C++ compiled, cached and launched at run time."""
