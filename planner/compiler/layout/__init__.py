"""Layout assignment: the order of dims in memory, and the copies that it costs."""
