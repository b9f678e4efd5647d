"""The request.

In: the keywords of `plan`. Out: checked arguments, mesh and pins, the layout of another plan, the traced program.
"""
