"""Commands that ask: retrieval, the registry of chips, what there is to know."""
