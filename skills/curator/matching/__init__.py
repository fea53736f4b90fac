"""Whether the library says it already."""
