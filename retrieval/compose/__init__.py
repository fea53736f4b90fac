"""What goes beside the excerpts and into the prompt: moves, skills, the packed context."""
