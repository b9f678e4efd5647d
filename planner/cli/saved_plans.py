"""Commands on saved plans: show one, explain it, draw it, compare two."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from planner.api import compare, load
from planner.cli.outputs import check_file
from planner.cli.program_file import load_program
from planner.cli.progress import status
from planner.plan_file.codec import as_json
from planner.plans.plan import Plan
from planner.report.plain_data import decision_data, report_data
from planner.report.plan_report import plan_report
from planner.report.text import describe

PROGRAM = re.compile(r".*:[A-Za-z_]\w*|:.*|.*:")
"""What is meant for FILE.py:FUNCTION: names of arrays have a colon only before the number of a line."""


def show(arguments: argparse.Namespace) -> int:
    """Prints a saved plan."""
    decision = load(arguments.plan).decision
    _print(decision_data(decision) if arguments.json else describe(decision), as_data=arguments.json)
    return 0


def explain(arguments: argparse.Namespace) -> int:
    """Prints what other specs of tensors of a saved plan would cost, and why; without its program, what its file says."""
    program, name = arguments.program, arguments.name
    if program is not None and name is None and not PROGRAM.fullmatch(program):
        program, name = None, program
    if program is None:
        told_by_file = load(arguments.plan).explain(name)
        _print(as_json(told_by_file) if arguments.json else str(told_by_file), as_data=arguments.json)
        return 0
    bound = bind(arguments.plan, program)
    with status("pricing alternatives"):
        found = bound.explain(name)
    _print(as_json(found) if arguments.json else str(found), as_data=arguments.json)
    return 0


def compare_two(arguments: argparse.Namespace) -> int:
    """Prints where two saved plans differ."""
    found = compare(load(arguments.a), load(arguments.b))
    _print({**as_json(found), "same": found.same} if arguments.json else str(found), as_data=arguments.json)
    return 0


def report(arguments: argparse.Namespace) -> int:
    """Writes the page of a saved plan, or prints what it shows."""
    output = Path(arguments.output or Path(arguments.plan).with_suffix(".html"))
    if not arguments.json:
        check_file(output)
    saved = load(arguments.plan)
    bound = None if arguments.program is None else bind(arguments.plan, arguments.program)
    if arguments.json:
        _print(report_data(plan_report(saved.decision, None if bound is None else bound.behind)), as_data=True)
        return 0
    (saved if bound is None else bound).report(output)
    print(f"wrote {output}", file=sys.stderr)
    return 0


def bind(path: str, program: str) -> Plan:
    """A saved plan bound to its program. Raises: ArgumentError, PlanFileError."""
    saved = load(path)
    planned = load_program(program)
    return saved.bind(planned.fn, planned.args)


def _print(what: Any, *, as_data: bool) -> None:
    print(json.dumps(what, indent=1) if as_data else what)
