"""Scheduling: when ops run, and from when to when tensors live."""
