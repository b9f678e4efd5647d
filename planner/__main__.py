"""`python -m planner`: the command line of `planner.cli.main`."""

import sys

from planner.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
