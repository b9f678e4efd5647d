"""Planning.

In: a request. Out: the plan: candidates proposed, checked and bound, or a plan from the cache.
"""
