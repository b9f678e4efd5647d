"""The solver: takes numbers and names, gives a choice, its value and a lower bound; exact where that is affordable.

Every problem is made smaller, solved, and its choice led back (`smaller`). What runs when, and what it proves:

    step                                 runs                                             proves
    narrow: least costs, then messages   before all else, where a good plan is known      what is left out costs more
    reductions, prepared                 first, and again after every round of pruning    nothing is lost
    elimination                          no rows active, its tables are small enough      the optimum
    prices (cutting planes)              some rows active, elimination is affordable      the best bound that prices give
    lagrangian (messages, subgradient)   elimination is too dear                          a bound; prunes what is above it
    local search                         beside messages and prices                       nothing; finds choices
    ilp                                  what is left has few enough variables            the optimum, or a bound in time
    folding, arrays                      before the next two                              nothing is lost
    multiplicative weights (dual)        rows leave a gap, or a large problem has rows    a bound
    block moves (primal)                 at the same time, at the dual's prices           nothing; finds choices
    infeasible                           nothing fits the rows                            which rows conflict, what would do
    brute, random                        when asked for by name, in tests                 the optimum; nothing

`auto` composes them; other names in `METHODS` are single methods. Outside, `least_memory` prices points of the schedule by
multiplicative weights and by mixtures to bound the least peak, and `within_limit` by growing prices, then by Dantzig and
Wolfe's mixtures, each time with a problem without rows.
"""
