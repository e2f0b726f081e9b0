"""Verbs: one a file."""
