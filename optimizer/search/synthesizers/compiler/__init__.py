"""Candidates without a new kernel: configurations of torch.compile, and rewrites of the graph."""
