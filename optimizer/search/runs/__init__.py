"""Runs: a goal carried out on this machine, its rows in the catalog, and what is read of them."""
