"""Trajectories for the curator: of this product's own runs, and of what others told once it was
evaluated here."""
