"""The search over meshes.

In: the problem of each mesh.
Out: the best assignment, and a lower bound over all meshes.
Entry: `planner.search.mesh_search.search`.
"""
