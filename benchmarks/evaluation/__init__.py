"""The harness against itself, cheats, planted kernels, and baselines."""
