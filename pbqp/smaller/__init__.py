"""Problems made smaller by what is alike in them.

In: a problem.
Out: a smaller problem, and `lift`, which maps its assignments back.
Entry: `pbqp.smaller.smaller.Smaller`.
"""
