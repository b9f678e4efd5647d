"""Axes of matplotlib, which is an extra."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def new_axes(who: str) -> Any:
    """The axes of a new figure, for whoever draws. Raises: ImportError where matplotlib is not installed."""
    try:
        pyplot = import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ImportError(
            f"{who} draws with matplotlib, which is not installed: pip install 'meshwright[viz]'"
        ) from error
    return pyplot.subplots(layout="constrained")[1]
