"""Code samples of an uploaded manual, as proposed recipes."""
