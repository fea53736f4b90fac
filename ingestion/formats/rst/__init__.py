"""reStructuredText: blocks by docutils, directives by their meaning."""
