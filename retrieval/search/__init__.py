"""What is said about it: the plan of a search, its ranking over words and vectors, the excerpts."""
