"""reStructuredText: lines, directives, tables."""
