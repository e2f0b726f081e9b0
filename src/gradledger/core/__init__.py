"""The vocabulary that every other package shares; standard library only."""
