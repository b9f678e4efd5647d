"""The command line: search a plan offline, or plans along memory against time, plans of it
kept in files shown, explained, compared and drawn, the devices here measured.

    python -m planner search FILE.py:FUNCTION --topology v5e:16x16 -o plan.json
    python -m planner search FILE.py:FUNCTION --topology v5e:4x4 --topology h100:8 --topology cpu:8 -o folder
    python -m planner pareto FILE.py:FUNCTION --topology v5e:16x16 -o front
    python -m planner show plan.json
    python -m planner explain plan.json FILE.py:FUNCTION
    python -m planner what-if plan.json FILE.py:FUNCTION --pin 'params/*/kernel=None,(data,model)'
    python -m planner fallbacks plan.json FILE.py:FUNCTION --topology v5e:8x16
    python -m planner compare plan.json other.json
    python -m planner report plan.json FILE.py:FUNCTION -o plan.html
    python -m planner audit FILE.py:FUNCTION --topology v5e:4x4
    python -m planner calibrate

The same is installed as `meshwright`. Plans and tables go to the standard output, progress and errors to the standard
error. Exit codes: 0 done; 1 a check of a plan failed, before it was handed over or by `--verify`; 2 an error, told in one
sentence; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

import jax

from cost_models import CostModelError, Profile, calibrate, parse_topology, save_profile
from planner.api import audit, compare_topologies, pareto, plan
from planner.cli import saved_plans
from planner.cli.outputs import PLAN, PROFILE, check_output, say
from planner.cli.parser import make_parser
from planner.cli.planning_options import in_flags
from planner.cli.program_file import keywords_given, keywords_of, load_program, options_of
from planner.cli.progress import show_progress, status
from planner.errors import ArgumentError, PlannerError
from planner.machine.device_profile import default_profile
from planner.plans.plan import Plan
from planner.report.text import describe_profile
from planner.request.joint_request import RequestedProgram
from planner.studies import pareto as front
from planner.studies import topology_table
from planner.studies.saved_folder import check_folder
from planner.verify.compiler_clock import compiler_profile

T = TypeVar("T")

SMALL_SLICES = {"v4": "2x2x2", "v5p": "2x2x4", "tpu7x": "2x2x2"}
"""The slices for which a chip's microbenchmarks are compiled; of those not named, 4x4."""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the command `argv` (default: the arguments of this process)."""
    given = sys.argv[1:] if argv is None else argv
    arguments = make_parser(COMMANDS, saved_plans.add_saved_plans).parse_args(given)
    try:
        return arguments.command(arguments)
    except (PlannerError, CostModelError) as error:
        print(f"meshwright: error: {' '.join(in_flags(str(error), given).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read the output (`head`, a pager) has gone; the interpreter must not try to flush what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("meshwright: interrupted; what was not finished was not written", file=sys.stderr)
        return 130


# ---------------------------------------------------------------- commands


def _search(arguments: argparse.Namespace) -> int:
    """Plans a program of a file, prints the plan and keeps it."""
    topologies: list[str] = arguments.topology or []
    if len(topologies) > 1:
        return _compare(arguments, topologies)
    if arguments.json:
        raise ArgumentError(
            "--json prints the table of several topologies; give --topology twice or more, or leave it out"
        )
    arguments.topology = next(iter(topologies), None)
    output: Path | None = arguments.output
    if output is not None:
        check_output(output, PLAN, force=arguments.force)
    planned, made = _planned(arguments, plan)
    made.show()
    if output is not None:
        made.save(output)
        print(f"wrote {output}", file=sys.stderr)
    if not arguments.verify:
        return _failed([made])
    return max(_failed([made]), _verified(made, planned, "verification", sys.stdout))


def _failed(plans: Iterable[Plan]) -> int:
    """The exit code by the checks that were made before plans were handed over."""
    return int(any(check.ok is False for plan in plans for check in plan.checked))


def _verified(made: Plan, planned: RequestedProgram, heading: str, to: TextIO) -> int:
    """Compiles a plan and prints what differs; the exit code."""
    with status("compiling and comparing"):
        verification = made.verify(*planned.args, **planned.kwargs)
    print(f"\n{heading}", file=to)
    verification.show(to)
    return int(any(check.ok is False for check in verification.checks))


def _planned(arguments: argparse.Namespace, call: Callable[..., T], **more: Any) -> tuple[RequestedProgram, T]:
    """The program of a file, and what a function of the planner makes of it as the file and the arguments say."""
    planned = load_program(arguments.program)
    keywords = keywords_given(arguments, planned, call)
    for name in [name for name in keywords if name not in keywords_of(call)]:
        # The topologies of the command line take the place of the file's.
        if keywords.pop(name) is not None and name != "topology":
            raise ArgumentError(f"{name} is given, which is for one plan; leave it out, or give one --topology")
    with show_progress() as progress:
        keywords["options"] = options_of(arguments, planned, progress)
        return planned, call(planned.fn, planned.args, **keywords, **more)


def _compare(arguments: argparse.Namespace, topologies: Sequence[str]) -> int:
    """Plans a program of a file for several topologies, prints the plans in a table and keeps them."""
    output: Path | None = arguments.output
    if output is not None:
        check_folder(output.absolute(), topology_table.SUMMARY, "comparison")
    arguments.topology = None
    planned, found = _planned(arguments, compare_topologies, topologies=topologies)
    _hand_over(found, len(found.plans), arguments)
    codes = [_failed(found.plans.values())]
    if arguments.verify:
        to = sys.stderr if arguments.json else sys.stdout
        codes += [_verified(plan, planned, f"verification of {name}", to) for name, plan in found.plans.items()]
    return max(codes)


def _pareto(arguments: argparse.Namespace) -> int:
    """Plans a program of a file along memory against time, prints the plans in a table and keeps them."""
    output: Path | None = arguments.output
    if output is not None:
        check_folder(output.absolute(), front.SUMMARY, "front")
    _, found = _planned(arguments, pareto)
    _hand_over(found, len(found), arguments)
    return _failed(found)


def _hand_over(
    found: front.Front | topology_table.TopologyComparison, plans: int, arguments: argparse.Namespace
) -> None:
    """Prints a table of plans and writes them, as the arguments say."""
    say(found, found.summary, arguments)
    if arguments.output is not None:
        found.save(arguments.output)
        print(f"wrote {plans} plans and a summary to {arguments.output}", file=sys.stderr)


def _audit(arguments: argparse.Namespace) -> int:
    """Prints what a program's own shardings cost."""
    planned = load_program(arguments.program, keywords=keywords_of(audit))
    keywords = keywords_given(arguments, planned, audit)
    keywords["options"] = options_of(arguments, planned)
    with status("pricing the shardings"):
        found = audit(planned.fn, planned.args, **keywords)
    say(found, found.summary, arguments)
    return 0


def _calibrate(arguments: argparse.Namespace) -> int:
    """Measures, prints what was fitted and keeps it where `cost_model="measured"` looks for it."""
    if arguments.output is not None:
        check_output(arguments.output, PROFILE, force=arguments.force)
    profile = _measured(arguments) if arguments.compiler is None else _scheduled(arguments.compiler)
    path: Path = arguments.output or default_profile(profile.platform, profile.device_kind, profile.num_devices)
    save_profile(profile, path)
    print(describe_profile(profile))
    print(f"wrote {path}", file=sys.stderr)
    return 0


def _scheduled(name: str) -> Profile:
    """The profile of a topology by its compiler's schedules."""
    topology = parse_topology(name if ":" in name else f"{name}:{SMALL_SLICES.get(name, '4x4')}")
    with status(f"compiling for {topology.name}") as say:
        return compiler_profile(topology, progress=say)


def _measured(arguments: argparse.Namespace) -> Profile:
    """The profile of the devices at hand."""
    try:
        devices = jax.devices()
    except RuntimeError as error:
        raise ArgumentError(f"jax finds no devices to measure ({error}); see its installation guide") from error
    if arguments.devices is not None:
        if arguments.devices > len(devices):
            raise ArgumentError(f"--devices is {arguments.devices}, but jax finds {len(devices)}; give at most those")
        devices = devices[: arguments.devices]
    with status("measuring") as say:
        return calibrate(devices, budget_seconds=arguments.budget, seed=arguments.seed, progress=say)


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "search": _search,
    "pareto": _pareto,
    "show": saved_plans.show,
    "explain": saved_plans.explain_saved,
    "what-if": saved_plans.what_if_saved,
    "fallbacks": saved_plans.fallbacks_saved,
    "compare": saved_plans.compare_two,
    "report": saved_plans.report,
    "audit": _audit,
    "calibrate": _calibrate,
}
"""What runs each command."""
