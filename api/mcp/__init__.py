"""Tools, resources and prompts for coding agents, by the Model Context Protocol."""
