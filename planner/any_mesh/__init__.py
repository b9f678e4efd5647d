"""What holds for every mesh: takes the graph, gives what is decided, what travels and what stands in memory."""
