"""The acceptance test of a chip's manuals: their claims, tried on the chip's own toolchain."""
