"""Whether a candidate computes the right result: goldens, error bounds, the check."""
