"""Renderers: the same findings for a person, a program or a page."""
