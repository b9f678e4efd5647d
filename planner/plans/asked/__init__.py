"""What a user asks for, read and checked: the arguments, the mesh, the pins, the layout of another plan. In: the keywords
of `planner.plan`. Out: a session, ready to be searched."""
