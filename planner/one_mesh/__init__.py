"""One program on one mesh: takes what holds for every mesh, gives strategies, their prices, and the problem."""
