"""The command line. Importing it loads nothing heavy: a command imports what it uses."""
