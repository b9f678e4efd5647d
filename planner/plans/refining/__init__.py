"""Refining: takes a session and its first plans, has the most promising compiled or run, gives the best of them."""
