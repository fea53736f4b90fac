"""One module for each command or group of commands, named after it."""
