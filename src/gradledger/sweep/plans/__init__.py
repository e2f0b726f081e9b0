"""Planners, one a file; found by the scan in `gradledger.sweep._planners`."""
