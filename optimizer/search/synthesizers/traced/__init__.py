"""Proposes kernels generated from the problem's own graph: trace it, lower it to loops over a
closed set of operators, and write these as C++ or Triton."""
