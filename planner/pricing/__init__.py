"""One program on one mesh.

In: decisions and the compiler model. Out: strategies, their prices, and the problem to solve.
"""
