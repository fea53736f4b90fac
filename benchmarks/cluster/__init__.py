"""An installation on one machine, whose parts are killed in turn: `make cluster`."""
