"""Parsers whose usage is one line, and whose errors suggest what was meant."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """A parser of a command, or of all commands."""

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        """As argparse does; what is not known is an error of the command that was given it."""
        found, left = super().parse_known_args(*args, **kwargs)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return found, left

    def error(self, message: str) -> NoReturn:
        """Exits with a message and a suggestion."""
        super().error(f"{message}{self._suggested(message)}")

    def _suggested(self, message: str) -> str:
        """What was probably meant; "" where nothing is near."""
        known: Sequence[str] = ()
        meant = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if meant is not None:
            known = re.findall(r"[\w-]+", meant[2])
        else:
            meant = re.search(r"unrecognized arguments: (?:.*? )??(--[\w-]+)", message)
            known = [
                flag for action in self._actions if action.help != argparse.SUPPRESS for flag in action.option_strings
            ]
        close = get_close_matches(meant[1], known, n=1) if meant is not None else []
        return f"; did you mean {close[0]}?" if close else ""

    def shorten_usage(self) -> None:
        """Makes the usage one line, once all arguments are known."""
        names = [
            f"[{action.metavar}]" if action.nargs == "?" else str(action.metavar)
            for action in self._actions
            if not action.option_strings
        ]
        self.usage = " ".join(("%(prog)s", *names, "[options]"))
