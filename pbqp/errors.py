"""The one error of the solver; each message says what was wrong, the value got and what to do."""


class SolverError(Exception):
    """A problem is malformed or the solver could not finish."""
