"""Recipes by name, a file per family: see docs/recipes.md."""
