"""Names of the last release, which are taken for one more with a `DeprecationWarning`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

FORMER_KEYWORDS: Mapping[str, str] = {"recompute": "remat", "refine": "autotune", "host_local": "process_local"}
"""Keywords of the last release, and what they are called today."""

T = TypeVar("T")


def warn_of(old: str, new: str, *, levels: int = 0) -> None:
    """Warns that `old` is `new` today, in the line that is so many calls above the caller of this function's caller."""
    text = f"{old} is {new} now; the next release does not take the old name"
    warnings.warn(text, DeprecationWarning, stacklevel=levels + 3)


def renamed(keywords: Mapping[str, Any], *, levels: int = 0) -> dict[str, Any]:
    """Keywords by their names of today; `levels` as in `warn_of`.

    What comes by a former name goes before: `dataclasses.replace` gives both.
    """
    former = [name for name in keywords if name in FORMER_KEYWORDS]
    for name in former:
        warn_of(f"{name}=", f"{FORMER_KEYWORDS[name]}=", levels=levels)
    today = {name: value for name, value in keywords.items() if name not in former}
    return today | {FORMER_KEYWORDS[name]: keywords[name] for name in former}


def with_former_keywords(kind: type[T]) -> type[T]:
    """The class, which is made by the keywords of the last release, too."""
    made: Callable[..., None] = kind.__init__

    @wraps(made)
    def init(*args: Any, **kwargs: Any) -> None:
        made(*args, **renamed(kwargs, levels=1))

    kind.__init__ = init
    return kind


def former_attributes(names: Mapping[str, str]) -> Callable[[Any, str], Any]:
    """A `__getattr__` that finds attributes of the last release under their names of today."""

    def find(self: Any, name: str) -> Any:
        if name not in names:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        warn_of(f"{type(self).__name__}.{name}", f"{type(self).__name__}.{names[name]}")
        return getattr(self, names[name])

    return find
