"""The command line. Importing it loads nothing heavy: commands import what they use when they run."""
