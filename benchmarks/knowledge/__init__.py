"""What the store takes in: ingestion, loading, the coverage of the built-in knowledge."""
