"""The optimizer loop wired to the catalog, the registry and the retriever."""
