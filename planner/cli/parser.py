"""The parser of the command line: every command with its arguments, units and defaults."""

from __future__ import annotations

import argparse
import importlib.metadata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from cost_models import OBJECTIVES
from planner.cli.arguments import Parser
from planner.cli.outputs import add_output
from planner.cli.planning_options import add_options
from planner.cli.values import (
    parse_arguments,
    parse_bytes,
    parse_count,
    parse_mesh,
    parse_names,
    parse_pin,
    parse_rules,
    parse_seconds,
    parse_seed,
)
from planner.options import Check
from planner.pricing.mesh import AXIS_NAMES
from planner.studies.pareto import MOST_POINTS

Command = Callable[[argparse.Namespace], int]

PIN_HELP = (
    "place the tensors whose names match the shell-style PATTERN as SPEC: one entry per dim, separated by commas, each "
    "an axis, several axes in brackets, or None for a dim that is not split, as in 'x,None,(y,z)' or "
    "'params/*/kernel=None,(data,model)'; 'PATTERN=' alone pins them whole. Names are those of the printed plan, axes "
    "those of --mesh, or --axis-names of a searched mesh. May be given many times; a later pin wins"
)


def make_parser(commands: Mapping[str, Command], add_more: Callable[[Any], None]) -> Parser:
    """The parser; `command` of what it reads is the one of that name. `add_more` adds the commands on saved plans."""
    parser = Parser(prog="meshwright", description="Plans how a JAX program written for one device is placed on many.")
    version = importlib.metadata.version("meshwright")
    parser.add_argument("--version", action="version", version=f"meshwright {version}")
    added = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_search(added)
    _add_pareto(added)
    add_more(added)
    _add_audit(added)
    _add_calibrate(added)
    for name, command in commands.items():
        added.choices[name].set_defaults(command=command)
        added.choices[name].shorten_usage()
    parser.shorten_usage()
    return parser


def _add_search(commands: Any) -> None:
    search: argparse.ArgumentParser = commands.add_parser(
        "search",
        help="plan a program, print the plan, keep it in a file",
        description="Plans the program that FUNCTION of FILE.py gives: FUNCTION takes nothing and returns (fn, "
        "example_args) or (fn, example_args, keywords), keywords being those of planner.plan. The arguments may be "
        "jax.ShapeDtypeStruct, so that nothing is allocated. FILE.py may import what lies in its folder. A plan "
        "that was written is taken back by planner.load(PATH).bind(fn), without a search. With several --topology the "
        "plans are printed beside one another, in a table of time, devices, memory, energy and what limits each, also "
        "for one device of each chip.",
    )
    _add_question(search)
    add_options(search)
    _add_topology(search, action="append", more=". Given many times: plan for each, and compare")
    search.add_argument(
        "--objective",
        choices=(*OBJECTIVES, "memory"),
        help="minimise the seconds (time) or joules (energy) of a call, or the peak bytes of a device (memory). "
        "Default: time",
    )
    search.add_argument(
        "--verify",
        action="store_true",
        help="compile the plan, or plans (for TPUs and GPUs that are not here, too, where their compiler is installed) "
        "and compare collectives and memory with the prediction; where the arguments are arrays and the devices present, "
        "also run it beside a single device. Exit code 1 if that fails, as without it if a check of the plan fails",
    )
    add_output(
        search,
        text="write the plan there as JSON; with several --topology, a folder for all of them, plan_0.json and so on, with "
        "a summary, topologies.json. Default: only print it",
    )
    search.add_argument(
        "--json", action="store_true", help="with several --topology: print the table as JSON, in bytes and seconds"
    )


def _add_pareto(commands: Any) -> None:
    pareto: argparse.ArgumentParser = commands.add_parser(
        "pareto",
        help="plan a program for several limits of memory, print what less memory costs, keep the plans",
        description="Plans the program that FUNCTION of FILE.py gives, as 'search' does, along peak memory against time: "
        "from the least memory to the least time, none of the plans worse than another in both. The table says of each its "
        "peak per device, its time, its mesh, and how far from the best of its memory it may be. The two plans at the ends "
        "are checked as 'search' checks one; those between are compiled while that takes less than a minute in all, and "
        "not run.",
    )
    _add_question(pareto)
    add_options(pareto, without=("autotune", "cache"))
    _add_topology(pareto)
    pareto.add_argument(
        "--points",
        type=int,
        default=7,
        metavar="N",
        help=f"about how many plans, from 2 to {MOST_POINTS}; fewer where there is less to trade. Default: %(default)s",
    )
    pareto.add_argument(
        "--objective",
        choices=tuple(OBJECTIVES),
        help="what is weighed against memory: the seconds (time) or joules (energy) of a call. Default: time",
    )
    pareto.add_argument("--json", action="store_true", help="print the table as JSON, in bytes and seconds")
    pareto.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="write the plans there, plan_0.json and so on, for planner.load and 'show', with a summary, front.json; a "
        "front that is there is replaced. Default: only print it",
    )


def _add_question(parser: argparse.ArgumentParser) -> None:
    """What is planned, for what, and how: alike for one plan and for several."""
    _add_program(
        parser,
        mesh="fix the mesh, sizes in devices, such as data=16,model=16. Default: search all factorizations into up to "
        "--max-axes axes, and the use of fewer devices",
    )
    parser.add_argument(
        "--axis-names",
        type=parse_names,
        metavar="NAME,...",
        help="names for the axes of a searched mesh, such as data,model, at most as many axes as names. Default: "
        f"{','.join(AXIS_NAMES)}",
    )
    parser.add_argument("--pin", dest="pins", type=parse_pin, action="append", metavar="PATTERN=SPEC", help=PIN_HELP)
    parser.add_argument(
        "--logical-rules",
        type=parse_rules,
        metavar="NAME=AXIS,...",
        help="what the names of dims mean, those of --pin and those that the program's parameters bring (Flax's boxed "
        "parameters): the axis that splits a dim of that name, several axes in brackets, or None, as in "
        "'batch=data,mlp=(data,model),embed=None'. Of several rules of one name the first whose axes are free counts. "
        "Default: the file's; without any, such names pin nothing",
    )
    parser.add_argument(
        "--like",
        type=Path,
        metavar="PLAN",
        help="a saved plan of another program on the same arrays, such as the train step whose parameters this one "
        "reads: its topology and mesh are taken, and what both have lies alike",
    )
    parser.add_argument(
        "--donate",
        type=parse_arguments,
        metavar="ARGUMENT,...",
        help="the arguments that the program may overwrite, by position (from 0) or by name, as donate_argnums and "
        "donate_argnames of jax.jit",
    )
    parser.add_argument(
        "--static",
        type=parse_arguments,
        metavar="ARGUMENT,...",
        help="the arguments that are constants, by position (from 0) or by name, as static_argnums and "
        "static_argnames of jax.jit",
    )


def _add_program(parser: argparse.ArgumentParser, *, mesh: str) -> None:
    """The program, its mesh, and the memory of a device; `mesh` is the help on that."""
    parser.add_argument("program", metavar="FILE.py:FUNCTION", help="the file and the function in it")
    parser.add_argument("--mesh", type=parse_mesh, metavar="AXIS=SIZE,...", help=mesh)
    parser.add_argument(
        "--memory",
        dest="memory_limit",
        type=parse_bytes,
        metavar="SIZE",
        help="limit of the memory of one device, in bytes or with a unit: 14GB (1e9 bytes each), 15.75GiB (2**30 bytes "
        "each). Default: what a device of the topology has",
    )


def _add_topology(parser: argparse.ArgumentParser, *, action: str = "store", more: str = "") -> None:
    parser.add_argument(
        "--topology",
        action=action,
        metavar="NAME",
        help="chips to plan for, CHIP:SHAPE such as v5e:16x16, v5p:4x4x4, h100:4x8 (nodes x GPUs) or cpu:8; "
        f"none of them need be present. Default: the devices jax finds here{more}",
    )


def _add_audit(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "audit",
        help="print what a program's own shardings cost",
        description="Prices the shardings that FUNCTION of FILE.py gives: it returns (fn, example_args, keywords), with "
        "keywords of planner.audit, in_shardings and out_shardings as jax.jit takes them among them; or fn is a jitted "
        "function with shardings, or names shardings itself. Prints collectives that a plan made without them does not "
        "have, large arrays held whole, and what leaving one sharding to the planner saves. What is priced is the best "
        "completion of the shardings; beside it stands what the compiler makes of the program as it is, where it is here.",
    )
    _add_program(parser, mesh="the mesh of the file's PartitionSpecs, sizes in devices")
    parser.add_argument(
        "--topology", metavar="NAME", help="chips, such as v5e:16x16. Default: the file's, or the devices here"
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


def _add_calibrate(commands: Any) -> None:
    measure = commands.add_parser(
        "calibrate",
        help="measure the devices here for --cost-model measured",
        description="Times matmuls, elementwise passes and each collective on the devices jax finds here, fits latency "
        "and throughput, prints them and keeps them, stamped with machine, JAX version and date. For virtual CPU "
        "devices set XLA_FLAGS=--xla_force_host_platform_device_count=8.",
    )
    measure.add_argument(
        "--budget",
        type=parse_seconds,
        default=60.0,
        metavar="SECONDS",
        help="about how many seconds to measure. Default: %(default)g",
    )
    measure.add_argument(
        "--compiler",
        metavar="TOPOLOGY",
        help="instead of timing devices, compile the microbenchmarks for a TPU topology, such as v5e:4x4, or a chip, "
        "such as v5e, and fit the compiler's schedules; takes minutes, and no device",
    )
    measure.add_argument("--devices", type=parse_count, metavar="N", help="measure the first N devices. Default: all")
    measure.add_argument("--seed", type=parse_seed, default=0, metavar="N", help="of the data. Default: %(default)s")
    add_output(
        measure,
        text="write the profile there as JSON. Default: under ~/.cache/meshwright, where the measured cost model looks "
        "for it",
    )
