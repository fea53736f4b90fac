"""Sixteen hard problems with shapes of production models, written by a language model."""
