"""One module per noun of the interface."""
