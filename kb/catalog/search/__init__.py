"""Problems, candidates, evaluations with their reviews, runs and told trajectories."""
