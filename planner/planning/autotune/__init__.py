"""Autotuning: takes a problem and its first plans, has the most promising compiled or run, gives the best of them."""
