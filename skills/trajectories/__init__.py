"""Searches as trajectories: received from other optimizers, evaluated again, read, reviewed."""
