"""Skills verified by leaving them out, on cases that they were not made from."""
