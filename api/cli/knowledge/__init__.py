"""The retrieve commands."""
