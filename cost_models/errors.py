"""The one error of the cost models; each message says what was wrong, the value got and what to do."""


class CostModelError(Exception):
    """A topology, chip, collective, profile or objective that does not exist or does not fit."""
