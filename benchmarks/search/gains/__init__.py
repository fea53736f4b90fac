"""What tables of a search's gains are made of: rows of runs, means over them, modules called."""
