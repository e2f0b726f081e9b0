"""Recipes: programs that are read from top to bottom and leave a folder with evidence behind."""
