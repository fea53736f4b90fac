"""A context as a prompt, section by section, within a budget."""
