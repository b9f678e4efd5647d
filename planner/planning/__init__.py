"""Planning: the loop that proposes candidates and checks them.

In: a request.
Out: the first plan that passes its checks, or one from the cache.
Entry: `planner.plan`.
"""
