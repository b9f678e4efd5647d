"""Fusion: which ops share a kernel, and what each kernel reads and writes."""
