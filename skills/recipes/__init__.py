"""Recipes: parameterised kernels as data. Standard library only, for the portable search core."""
