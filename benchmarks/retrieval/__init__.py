"""Quality and latency of retrieval, and comparison with plain retrievers."""
