"""Commands of the skill library and its curator."""
