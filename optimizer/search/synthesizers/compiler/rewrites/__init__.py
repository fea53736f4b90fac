"""Rewrites of a problem's graph that mean the same up to rounding; each is one small rule."""
