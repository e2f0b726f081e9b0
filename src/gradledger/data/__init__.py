"""Data that cannot quietly go wrong."""
