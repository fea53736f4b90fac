"""Commands about the store: what goes in, what lies there, and whether it is well."""
