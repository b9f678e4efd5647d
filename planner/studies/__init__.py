"""Studies of several plans.

In: a request. Out: a Pareto front, topologies side by side, an audit of shardings, several programs at once.
"""
