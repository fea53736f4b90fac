"""From candidate to active and back: ablations, uses, a person's word, a new toolchain."""
