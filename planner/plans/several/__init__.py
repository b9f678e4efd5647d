"""Several plans of one program, or of several. In: a question. Out: plans along a front, by topology, or in one layout."""
