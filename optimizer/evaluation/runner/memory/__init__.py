"""Arrays that a runner shares with its supervisor: their layout, fresh values, outputs, pinning."""
