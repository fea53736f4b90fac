"""Recipes applied to problems: whether one fits, and its candidate for chosen values."""
