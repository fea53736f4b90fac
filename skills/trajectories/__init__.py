"""Trajectories of runs and of external optimizers: received, evaluated again here, read back and
reviewed by people."""
