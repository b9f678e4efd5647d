"""Opaque kernels: takes what their users say of them, gives rules, work, and how they run on parts."""
