"""A whole installation on one machine, and what the loss of each part costs: `make cluster`."""
