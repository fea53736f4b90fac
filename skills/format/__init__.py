"""The SKILL.md format: its rules, folders and archives, and what may not stand in a text."""
