"""A Ray cluster: the connection to it, which nodes have what, and the work that is sent."""
