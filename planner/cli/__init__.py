"""The command line.

In: the arguments of `meshwright`.
Out: tables on the screen, files, an exit status.
Entry: `planner.cli.main.main`.
"""
