"""What is done is not done again: evaluations and their stages, in memory or in the catalog."""
