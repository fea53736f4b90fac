"""The door of coding agents: tools, resources and prompts of the Model Context Protocol."""
