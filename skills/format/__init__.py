"""The SKILL.md format: its rules, folders and archives, and the linter of skill texts."""
