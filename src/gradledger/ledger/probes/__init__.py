"""Probes: one observed point a file."""
