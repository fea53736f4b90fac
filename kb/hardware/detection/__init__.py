"""What this machine has, as the vendors' tools and the kernel tell it."""
