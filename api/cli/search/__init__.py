"""Commands of the optimizer: problems, evaluations, runs and trajectories."""
