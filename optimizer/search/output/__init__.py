"""The output of a run: an importable module, a report with plots, and the trajectory."""
