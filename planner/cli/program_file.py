"""Programs to plan, out of files (`FILE.py:FUNCTION`), with their keywords."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from planner.api import load, plan
from planner.cli.planning_options import FLAGS
from planner.errors import ArgumentError
from planner.former_names import renamed
from planner.options import Options, Progress
from planner.request.joint_request import RequestedProgram


def keywords_of(fn: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the keywords of a function of the planner."""
    parameters = inspect.signature(fn).parameters
    return tuple(name for name, parameter in parameters.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY)


KEYWORDS = keywords_of(plan)
"""What a file may give for `planner.plan` beside the function and its arguments."""


def load_program(text: str, *, keywords: Sequence[str] = KEYWORDS) -> RequestedProgram:
    """What FUNCTION of FILE.py returns, with some of these keywords; its folder is on `sys.path` while it runs and after.

    Raises: ArgumentError when the file or the function is missing, fails, or returns something else.
    """
    path_text, _, name = text.rpartition(":")
    if not path_text or not name:
        raise ArgumentError(f"the program is {text!r}; write FILE.py:FUNCTION")
    path = Path(path_text).absolute()
    if not _is_file(path):
        raise ArgumentError(f"there is no file {path_text!r}; give the path of a Python file")
    module = _load(path)
    function = getattr(module, name, None)
    if not callable(function):
        offered = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise ArgumentError(
            f"{path_text} has no function {name!r}; it has {', '.join(map(repr, offered)) or 'none'}, and the one to "
            "name takes nothing and returns (fn, example_args)"
        )
    try:
        returned = function()
    except (Exception, SystemExit) as error:
        raise ArgumentError(f"{name} of {path_text} failed {_where(error, path)}; it is called with nothing") from error
    return _planned(returned, f"{name} of {path_text}", keywords)


def keywords_given(arguments: argparse.Namespace, planned: RequestedProgram, fn: Callable[..., Any]) -> dict[str, Any]:
    """Keywords of a function of the planner but for `options`: the file's, overridden by the command line; pins add up.

    Raises: ArgumentError.
    """
    keywords = {name: value for name, value in planned.keywords.items() if name != "options"}
    for name in dict.fromkeys((*KEYWORDS, *keywords_of(fn))):
        if name not in ("options", "pins") and (value := getattr(arguments, name, None)) is not None:
            keywords[name] = load(value) if name == "like" else value
    for what in ("donate", "static"):
        if (marks := getattr(arguments, what, None)) is not None:
            keywords[f"{what}_argnums"] = tuple(mark for mark in marks if isinstance(mark, int))
            keywords[f"{what}_argnames"] = tuple(mark for mark in marks if isinstance(mark, str))
    if pinned := getattr(arguments, "pins", None):
        pins = keywords.get("pins") or {}
        if not isinstance(pins, Mapping):
            raise ArgumentError(
                f"{arguments.program} gives pins={pins!r}; it must be a dict of patterns to PartitionSpecs"
            )
        keywords["pins"] = {**pins, **dict(pinned)}
    return keywords


def options_of(
    arguments: argparse.Namespace, planned: RequestedProgram, progress: Callable[[Progress], object] | None = None
) -> Options:
    """The options of a program's file, overridden by those of the command line. Raises: ArgumentError."""
    base = planned.keywords.get("options") or Options()
    if not isinstance(base, Options):
        raise ArgumentError(f"{arguments.program} gives options={base!r}; it must be a planner.Options")
    given = {name: value for name in FLAGS if (value := getattr(arguments, name, None)) is not None}
    return replace(base, **given, progress=progress or base.progress)


def _planned(returned: Any, what: str, known: Sequence[str]) -> RequestedProgram:
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        raise ArgumentError(
            f"{what} returned {type(returned).__name__}; return (fn, example_args) or (fn, example_args, keywords)"
        )
    fn, args, keywords = (*returned, {})[:3]
    if not callable(fn) or not isinstance(args, (tuple, list)):
        raise ArgumentError(
            f"{what} returned ({type(fn).__name__}, {type(args).__name__}); the first must be a function and the "
            "second the tuple of its arguments"
        )
    if isinstance(keywords, Mapping):
        keywords = renamed(keywords)
    if not isinstance(keywords, Mapping) or not all(key in known for key in keywords):
        raise ArgumentError(f"{what} returned the keywords {keywords!r}; use a dict of {', '.join(known)}")
    return RequestedProgram(fn=fn, args=tuple(args), keywords=keywords)


def _load(path: Path) -> ModuleType:
    """The module of a file, importable under its own name as long as nothing else has that name."""
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_to_plan"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ArgumentError(f"{path.name} is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ArgumentError(
            f"{path.name} cannot be loaded: it failed {_where(error, path)}; give a file that can be imported"
        ) from error
    return module


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name longer than any file's
        return False


def _where(error: BaseException, path: Path) -> str:
    """Where in the user's file an error came from, and what it is."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    at = f"at line {lines[-1]} " if lines else ""
    return f"{at}with {type(error).__name__}: {error}"
