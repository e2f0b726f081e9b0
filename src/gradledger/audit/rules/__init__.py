"""Rules: one fault a file, found by a scan of this directory."""
