"""The command that audits the shardings that a program's file gives."""

from __future__ import annotations

import argparse
import json
from typing import Any, get_args

from planner.api import audit
from planner.cli.planning_options import options_of
from planner.cli.program_file import keywords_given, keywords_of, load_program
from planner.cli.progress import status
from planner.cli.values import parse_bytes, parse_mesh
from planner.options import Check


def add_audit(commands: Any) -> None:
    """Adds the command to a parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "audit",
        help="print what a program's own shardings cost",
        description="Prices the shardings that FUNCTION of FILE.py gives: it returns (fn, example_args, keywords), with "
        "keywords of planner.audit, in_shardings and out_shardings as jax.jit takes them among them; or fn is a jitted "
        "function with shardings, or names shardings itself. Prints collectives that a plan made without them does not "
        "have, large arrays held whole, and what leaving one sharding to the planner saves. What is priced is the best "
        "completion of the shardings; beside it stands what the compiler makes of the program as it is, where it is here.",
    )
    parser.add_argument("program", metavar="FILE.py:FUNCTION", help="the file and the function in it")
    parser.add_argument(
        "--topology", metavar="NAME", help="chips, such as v5e:16x16. Default: the file's, or the devices here"
    )
    parser.add_argument(
        "--mesh",
        type=parse_mesh,
        metavar="AXIS=SIZE,...",
        help="the mesh of the file's PartitionSpecs, sizes in devices",
    )
    parser.add_argument(
        "--memory",
        dest="memory_limit",
        type=parse_bytes,
        metavar="SIZE",
        help="limit of the memory of one device, such as 14GB. Default: what it has",
    )
    parser.add_argument(
        "--time-limit",
        dest="time_limit_s",
        type=float,
        metavar="SECONDS",
        help="seconds for each of the searches. Default: the file's",
    )
    parser.add_argument(
        "--check",
        choices=get_args(Check),
        help="whether the program is compiled as it stands, also for devices that are not here, where their compiler is "
        "installed. Default: the file's",
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON, in bytes and seconds")


def run_audit(arguments: argparse.Namespace) -> int:
    """Prints what a program's own shardings cost."""
    planned = load_program(arguments.program, keywords=keywords_of(audit))
    keywords = keywords_given(arguments, planned, audit)
    keywords["options"] = options_of(arguments, planned)
    with status("pricing the shardings"):
        found = audit(planned.fn, planned.args, **keywords)
    print(json.dumps(found.summary, indent=1) if arguments.json else found)
    return 0
