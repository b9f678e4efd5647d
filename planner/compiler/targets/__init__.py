"""Targets: the compiler of each platform as a literal tuple of passes, and its limits on each chip."""
