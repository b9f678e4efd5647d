"""Commands on saved plans: show one, explain it, ask what else, plan for what may be left, draw it, compare two."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any, get_args

from planner.api import WITHIN, compare, fallbacks, load
from planner.cli.outputs import add_output, check_page, json_text, say
from planner.cli.program_file import load_program
from planner.cli.progress import show_progress, status
from planner.cli.values import parse_bytes, parse_mesh, parse_pin, parse_seconds
from planner.options import Check, Options
from planner.plan_file.codec import as_json as plain
from planner.plans.plan import Plan
from planner.report.plan_report import decision_data, plan_report, report_data
from planner.studies.fallbacks import record
from planner.studies.saved_folder import check_folder

PROGRAM = re.compile(r".*:[A-Za-z_]\w*|:.*|.*:")
"""What is meant for FILE.py:FUNCTION: names of arrays have a colon only before the number of a line."""
JSON_HELP = "print it as JSON, in bytes and seconds (joules, where energy was minimised)"


def add_saved_plans(commands: Any) -> None:
    """Adds the commands on saved plans."""
    _add_show(commands)
    _add_explain(commands)
    _add_what_if(commands)
    _add_fallbacks(commands)
    _add_compare(commands)
    _add_report(commands)


def _of_plan(
    commands: Any, name: str, *, about: str, description: str, first: str = "plan", as_json: str = JSON_HELP
) -> argparse.ArgumentParser:
    """The parser of a command whose first argument is a plan's file, and which prints JSON where that is asked for."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=description)
    parser.add_argument(first, metavar=f"{first.upper()}.json", help="a plan's file, as 'search' writes it")
    parser.add_argument("--json", action="store_true", help=as_json)
    return parser


def _add_show(commands: Any) -> None:
    _of_plan(commands, "show", about="print a saved plan", description="Prints a plan that 'search' wrote.")


def _add_explain(commands: Any) -> None:
    explain = _of_plan(
        commands,
        "explain",
        about="print why arrays of a saved plan are placed as they are",
        description="Prints for some arrays the best few specs that they could have, what the best plan with each costs "
        "more than this one, and the one reason for it: a collective, computing that is not split, memory. The plan's file "
        "says what was decided, and not what else could be: without the program it is told how the arrays lie, what that "
        "takes, and what moves them.",
    )
    explain.add_argument(
        "program",
        nargs="?",
        metavar="FILE.py:FUNCTION",
        help="the program that was planned, as 'search' takes it. Default: what the plan's file says by itself",
    )
    explain.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="an array's name in the printed plan, or a shell-style pattern such as 'params/*/kernel'. Default: the "
        "largest arguments, of those of one type and spec one",
    )


def _add_what_if(commands: Any) -> None:
    what_if = _of_plan(
        commands,
        "what-if",
        about="print what another spec, mesh or memory limit would change in a saved plan",
        description="Prices the program of a saved plan with other specs of some arrays, on another mesh or within another "
        "memory limit, everything else chosen anew on that mesh, and prints where that differs from the plan, as 'compare' "
        "does. Microbatches and saved values stay; no other mesh is searched, and nothing is compiled.",
    )
    what_if.add_argument(
        "program", metavar="FILE.py:FUNCTION", help="the program that was planned, as 'search' takes it"
    )
    what_if.add_argument(
        "--pin",
        dest="pins",
        type=parse_pin,
        action="append",
        metavar="PATTERN=SPEC",
        help="give the arrays whose names match this spec, as --pin of 'search' does; may be given many times",
    )
    what_if.add_argument(
        "--mesh", type=parse_mesh, metavar="AXIS=SIZE,...", help="another mesh, such as data=16,model=4"
    )
    what_if.add_argument(
        "--memory", dest="memory_limit", type=parse_bytes, metavar="SIZE", help="another memory limit, such as 14GB"
    )


def _add_fallbacks(commands: Any) -> None:
    fallbacks = _of_plan(
        commands,
        "fallbacks",
        about="plan for the devices that may be left, and print what going over to them takes",
        description="Plans the program of a saved plan, with the same arguments, for topologies that may be left of its "
        "devices, and prints for each the time of a call and what its state moves: what stays, what comes over the chip "
        "network and the data-centre network, and what no device left holds, so that it comes from a checkpoint.",
    )
    fallbacks.add_argument(
        "program", metavar="FILE.py:FUNCTION", help="the program that was planned, as 'search' takes it"
    )
    fallbacks.add_argument(
        "--topology",
        action="append",
        required=True,
        metavar="NAME",
        help="chips that may be left, such as v5e:8x16 of v5e:16x16; may be given many times",
    )
    fallbacks.add_argument(
        "--within",
        type=float,
        default=WITHIN,
        metavar="SHARE",
        help="the share of its time per call that a plan may take longer than the fastest, where its state takes less to "
        "move. Default: %(default)g",
    )
    fallbacks.add_argument(
        "--time-limit",
        dest="time_limit_s",
        type=parse_seconds,
        metavar="SECONDS",
        help="seconds for all searches. Default: as of 'search'",
    )
    fallbacks.add_argument(
        "--check", choices=get_args(Check), help="whether the plans are compiled, as of 'search'. Default: auto"
    )
    fallbacks.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="write the plans there, plan_0.json and so on, for planner.load and 'show', with a summary, fallbacks.json; "
        "fallbacks that are there are replaced. Default: only print them",
    )


def _add_compare(commands: Any) -> None:
    compare = _of_plan(
        commands,
        "compare",
        first="a",
        about="print where two saved plans differ, and what that costs",
        description="Prints where plan B differs from plan A: mesh, form, time, memory, energy, specs and collectives. The "
        "files suffice. Plans of different functions, or for different chips, are compared as far as that means something, "
        "and the notes say so.",
    )
    compare.add_argument("b", metavar="B.json", help="another one's")


def _add_report(commands: Any) -> None:
    report = _of_plan(
        commands,
        "report",
        as_json="print what the page shows as JSON instead, and write nothing",
        about="write a saved plan as a page of HTML",
        description="Writes one HTML file that needs no network: where the time goes, memory over the step, what travels "
        "between devices, every array on the mesh, the op graph, the meshes tried, and what was checked. From the plan's "
        "file alone, without the program, some of it cannot be there; the page says what.",
    )
    report.add_argument(
        "program",
        nargs="?",
        metavar="FILE.py:FUNCTION",
        help="the program that was planned, as 'search' takes it: for computing by source line, memory and the op graph",
    )
    add_output(report, text="write the page there. Default: the plan's path with .html")


# ---------------------------------------------------------------- what they do


def show(arguments: argparse.Namespace) -> int:
    """Prints a saved plan."""
    saved = load(arguments.plan)
    return say(saved, decision_data(saved.decision), arguments)


def explain_saved(arguments: argparse.Namespace) -> int:
    """Prints what other specs of tensors of a saved plan would cost, and why; without its program, what its file says."""
    program, name = arguments.program, arguments.name
    if program is not None and name is None and not PROGRAM.fullmatch(program):
        program, name = None, program
    if program is None:
        found = load(arguments.plan).explain(name)
    else:
        bound = bind(arguments.plan, program)
        with status("pricing alternatives"):
            found = bound.explain(name)
    return say(found, plain(found), arguments)


def what_if_saved(arguments: argparse.Namespace) -> int:
    """Prints what other specs, another mesh or another memory limit would change in a saved plan."""
    bound = bind(arguments.plan, arguments.program)
    with status("pricing"):
        found = bound.what_if(
            dict(arguments.pins) if arguments.pins else None, mesh=arguments.mesh, memory_limit=arguments.memory_limit
        )
    comparison = found.comparison
    facts = {**plain(comparison), "same": comparison.same, "fits": found.fits, "proven": found.proven}
    return say(found, facts, arguments)


def fallbacks_saved(arguments: argparse.Namespace) -> int:
    """Plans the program of a saved plan for what may be left of its devices; the exit code by the checks of the plans."""
    output: Path | None = arguments.output
    if output is not None:
        check_folder(output.absolute(), record.SUMMARY, "fallbacks")
    bound = bind(arguments.plan, arguments.program)
    given = {"check": arguments.check, "time_limit_s": arguments.time_limit_s}
    with show_progress() as progress:
        options = Options(progress=progress, **{name: value for name, value in given.items() if value is not None})
        found = fallbacks(bound, arguments.topology, within=arguments.within, options=options)
    say(found, found.summary, arguments)
    if output is not None:
        found.save(output)
        print(f"wrote the fallbacks and a summary to {output}", file=sys.stderr)
    return int(any(check.ok is False for row in found if row.plan is not None for check in row.plan.checked))


def compare_two(arguments: argparse.Namespace) -> int:
    """Prints where two saved plans differ."""
    found = compare(load(arguments.a), load(arguments.b))
    return say(found, {**plain(found), "same": found.same}, arguments)


def report(arguments: argparse.Namespace) -> int:
    """Writes the page of a saved plan, or prints what it shows."""
    output = Path(arguments.output or Path(arguments.plan).with_suffix(".html"))
    if not arguments.json:
        check_page(output, has_program=arguments.program is not None, force=arguments.force)
    saved = load(arguments.plan)
    bound = None if arguments.program is None else bind(arguments.plan, arguments.program)
    if arguments.json:
        print(json_text(report_data(plan_report(saved.decision, None if bound is None else bound.alternatives))))
        return 0
    (saved if bound is None else bound).report(output)
    print(f"wrote {output}", file=sys.stderr)
    return 0


def bind(path: str, program: str) -> Plan:
    """A saved plan bound to its program. Raises: ArgumentError, PlanFileError."""
    saved = load(path)
    planned = load_program(program)
    return saved.bind(planned.fn, planned.args, example_kwargs=planned.kwargs)
