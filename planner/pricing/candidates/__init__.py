"""Strategies that may be chosen on a mesh: all that divide, less those that pins and hazards rule out."""
