"""What a trajectory's step shows: which steps count, what changed, what was measured."""
