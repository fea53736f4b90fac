"""What a run hands over: an importable module, a report with plots, and the trajectory."""
