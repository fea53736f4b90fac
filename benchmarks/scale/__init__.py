"""How stores and searches grow: millions of synthetic passages, a hundred thousand runs."""
