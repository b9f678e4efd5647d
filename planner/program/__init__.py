"""Programs: takes a function and its arguments, gives its graph, and the function again with constraints laid on."""
