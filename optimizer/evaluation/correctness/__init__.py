"""Whether a candidate computes the right thing: goldens, error bounds, the check."""
