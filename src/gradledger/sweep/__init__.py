"""The explicit, schedulable reverse pass."""
