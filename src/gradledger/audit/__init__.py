"""Judgements over recorded facts; loads no torch."""
