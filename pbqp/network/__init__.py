"""Networks of nodes and edges, and the reductions that make them smaller."""
