"""Kernels from the problem's own graph: it is traced, lowered to loops over a closed set of
operators, and written as C++ or Triton."""
