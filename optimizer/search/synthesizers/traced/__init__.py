"""Kernels written from the problem's own graph: it is traced, lowered to loops over a closed set of
operators, and each loop nest is written in the way that its family is fast in."""
