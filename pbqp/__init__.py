"""The solver of pairwise problems with memory rows. It knows numbers and names only.

In: a problem.
Out: an assignment, its value and a lower bound; the optimum if that is affordable.
Entry: `pbqp.methods.solve`.

Every problem is made smaller, solved, and its assignment mapped back (`smaller`). What runs when, and what it proves:

    step                                runs                                           proves
    narrow: least costs, then messages  before all else, if a good plan is known       what is left out costs more
    reductions, prepared                first, and after every round of pruning        nothing is lost
    elimination                         no rows active, its tables are small enough    the optimum
    cutting planes                      some rows active, elimination is affordable    the best bound that prices give
    messages, subgradient (lagrangian)  elimination is too dear                        a bound; prunes what is above it
    local search                        beside messages and prices                     nothing; finds assignments
    squeeze (compiled)                  more than 2,000 choices without rows           a bound; prunes
    elimination within slack            that leaves a gap, few nodes share a table     the optimum, or none is better
    integer program (ilp, HiGHS)        what is left has few enough variables          the optimum, or a bound in time
    folding, arrays                     before the next five                           nothing is lost
    rows added if violated (lazy_rows)  what folding leaves is small for the time      the optimum, or a bound
    multiplicative weights (dual)       rows leave a gap, or a large problem has rows  a bound
    branching on bytes                  those prices have converged                    a bound, in the end the optimum
    block moves (primal)                at the same time, at the dual's prices         nothing; finds assignments
    cores                               in turn with block moves                       nothing; finds assignments
    infeasible                          nothing fits the rows                          which rows conflict, what would do
    brute, random                       by name, in tests                              the optimum; nothing

`auto` composes them; other names in `METHODS` are single methods. Outside, `least_memory` prices points of the schedule by
multiplicative weights and by mixtures to bound the least peak, and `within_limit` by growing prices, then by Dantzig and
Wolfe's mixtures, each time with a problem without rows.
"""
