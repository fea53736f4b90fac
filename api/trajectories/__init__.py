"""Trajectories of others taken in and evaluated here; every trajectory out, for the curator and for
training."""
