"""Recipes meet problems: whether one fits, and the candidate that comes of chosen values."""
