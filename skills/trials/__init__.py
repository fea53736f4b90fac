"""Skills measured by leaving them out, on cases that they were not distilled from."""
