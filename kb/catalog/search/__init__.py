"""Problems, candidates, evaluations with their reviews, runs and external trajectories."""
