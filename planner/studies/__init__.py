"""Studies: several plans of one program, or of several programs.

In: a request that is searched several times.
Out: a Pareto front, topologies in a table, an audit of shardings, plans on one mesh.
Entry: `planner.studies.pareto_search`.
"""
