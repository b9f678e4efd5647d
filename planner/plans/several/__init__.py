"""Several plans of one program. In: a question. Out: plans along a front, by topology, or beside a user's shardings."""
