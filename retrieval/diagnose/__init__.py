"""What happened, as signals: metrics by rules, logs by signatures, joined into one verdict."""
