"""The command line: search a plan offline, show a saved one, measure the devices at hand.

    python -m planner search FILE.py:FUNCTION --topology v5e:16x16 -o plan.json
    python -m planner show plan.json
    python -m planner calibrate

The same is installed as `meshwright`. Plans and tables go to the standard output, progress and errors to the standard
error. Exit codes: 0 done; 1 `--verify` found a difference; 2 an error, told in one sentence; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from cost_models import OBJECTIVES, CostModelError, Profile, calibrate, parse_topology, save_profile
from planner.api import load, plan
from planner.cli.program_file import Planned, load_program
from planner.cli.progress import show_progress, status
from planner.cli.values import parse_bytes, parse_mesh, parse_pin, parse_positions
from planner.errors import ArgumentError, PlannerError
from planner.machine.device_profile import default_profile
from planner.one_mesh.mesh import AXIS_NAMES
from planner.options import REFINES, Options
from planner.plans.report import describe, describe_profile
from planner.verify.compiler_clock import compiler_profile

SMALL_SLICES = {"v4": "2x2x2", "v5p": "2x2x4", "tpu7x": "2x2x2"}
"""The slices for which a chip's microbenchmarks are compiled; of those not named, 4x4."""
PIN_HELP = (
    "place the tensors whose names match the shell-style PATTERN as SPEC: one entry per dim, separated by commas, each "
    "an axis, several axes in brackets, or None for a dim that is not split, as in 'x,None,(y,z)' or "
    "'params/*/kernel=None,(data,model)'; 'PATTERN=' alone pins them whole. Names are those of the printed plan, axes "
    "those of --mesh, or x, y, z of a searched mesh. May be given many times; a later pin wins"
)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the command `argv` (default: the arguments of this process)."""
    arguments = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except (PlannerError, CostModelError) as error:
        print(f"meshwright: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read the output (`head`, a pager) has gone; the interpreter must not try to flush what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("meshwright: interrupted; nothing was written", file=sys.stderr)
        return 130


# ---------------------------------------------------------------- commands


def _search(arguments: argparse.Namespace) -> int:
    """Plans a program of a file, prints the plan and keeps it."""
    output: Path | None = arguments.output
    if output is not None and not output.absolute().parent.is_dir():
        raise ArgumentError(f"there is no folder {str(output.absolute().parent)!r} to write {output.name} to; make it")
    planned = load_program(arguments.program)
    keywords = _keywords(arguments, planned)
    with show_progress(unit=_unit(keywords)) as progress:
        keywords["options"] = _options(arguments, planned, progress.update)
        made = plan(planned.fn, planned.args, **keywords)
    print(made)
    if output is not None:
        made.save(output)
        print(f"wrote {output}", file=sys.stderr)
    if not arguments.verify:
        return 0
    with status("compiling and comparing"):
        verification = made.verify(*planned.args)
    print(f"\nverification\n{verification}")
    return 0 if verification.ok else 1


def _show(arguments: argparse.Namespace) -> int:
    """Prints a saved plan."""
    print(describe(load(arguments.plan).decision))
    return 0


def _calibrate(arguments: argparse.Namespace) -> int:
    """Measures, prints what was fitted and keeps it where `cost_model="measured"` looks for it."""
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


# ---------------------------------------------------------------- what the arguments mean


def _keywords(arguments: argparse.Namespace, planned: Planned) -> dict[str, Any]:
    """The keywords of `planner.plan`: those the file gives, overridden by those of the command line; pins add up."""
    keywords = dict(planned.keywords)
    given = {
        "topology": arguments.topology,
        "mesh": arguments.mesh,
        "objective": arguments.objective,
        "memory_limit": arguments.memory,
        "donate_argnums": arguments.donate,
        "static_argnums": arguments.static,
    }
    keywords.update({name: value for name, value in given.items() if value is not None})
    if arguments.pin:
        keywords["pins"] = {**(keywords.get("pins") or {}), **dict(arguments.pin)}
    return keywords


def _options(arguments: argparse.Namespace, planned: Planned, progress: Callable[[Any], None]) -> Options:
    """The file's options, overridden by those of the command line."""
    base = planned.keywords.get("options") or Options()
    if not isinstance(base, Options):
        raise ArgumentError(f"{arguments.program} gives options={base!r}; it must be a planner.Options")

    def pick(name: str) -> Any:
        given = getattr(arguments, name)
        return getattr(base, name) if given is None else given

    return Options(
        time_limit_s=pick("time_limit_s"),
        check=pick("check"),
        cost_model=pick("cost_model"),
        profile=pick("profile"),
        seed=pick("seed"),
        max_axes=pick("max_axes"),
        while_trips=pick("while_trips"),
        share_layers=base.share_layers,
        affordable_flops=base.affordable_flops,
        affordable_compile_s=base.affordable_compile_s,
        refine=pick("refine"),
        cache=pick("cache"),
        progress=progress,
    )


def _unit(keywords: dict[str, Any]) -> str:
    return {"energy": "J", "memory": "B"}.get(keywords.get("objective", "time"), "s")


# ---------------------------------------------------------------- the parser


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="meshwright", description="Plans how a JAX program written for one device is placed on many."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_search(commands)
    _add_show(commands)
    _add_calibrate(commands)
    return parser


def _add_search(commands: Any) -> None:
    search = commands.add_parser(
        "search",
        help="plan a program, print the plan, keep it in a file",
        description="Plans the program that FUNCTION of FILE.py gives: FUNCTION takes nothing and returns (fn, "
        "example_args) or (fn, example_args, keywords), keywords being those of planner.plan. The arguments may be "
        "jax.ShapeDtypeStruct, so that nothing is allocated. FILE.py may import what lies in its folder. A plan "
        "that was written is taken back by planner.load(PATH).bind(fn), without a search.",
    )
    search.set_defaults(command=_search)
    search.add_argument("program", metavar="FILE.py:FUNCTION", help="the file and the function in it")
    search.add_argument(
        "--topology",
        metavar="NAME",
        help="chips to plan for, CHIP:SHAPE such as v5e:16x16, v5p:4x4x4, h100:4x8 (nodes x GPUs) or cpu:8; "
        "none of them need be present. Default: the devices jax finds here",
    )
    search.add_argument(
        "--mesh",
        type=parse_mesh,
        metavar="AXIS=SIZE,...",
        help="fix the mesh, sizes in devices, such as data=16,model=16. Default: search all factorizations into up to "
        f"--max-axes axes, named {', '.join(AXIS_NAMES)}, and the use of fewer devices",
    )
    search.add_argument(
        "--memory",
        type=parse_bytes,
        metavar="SIZE",
        help="limit of the memory of one device, in bytes or with a unit: 14GB (1e9 bytes each), 15.75GiB (2**30 bytes "
        "each). Default: what a device of the topology has",
    )
    search.add_argument("--pin", type=parse_pin, action="append", metavar="PATTERN=SPEC", help=PIN_HELP)
    search.add_argument(
        "--objective",
        choices=(*OBJECTIVES, "memory"),
        help="minimise the seconds (time) or joules (energy) of a call, or the peak bytes of a device (memory). "
        "Default: time",
    )
    search.add_argument(
        "--donate",
        type=parse_positions,
        metavar="N,...",
        help="positions (from 0) of the arguments that the program may overwrite, as jax.jit's donate_argnums",
    )
    search.add_argument(
        "--static",
        type=parse_positions,
        metavar="N,...",
        help="positions (from 0) of the arguments that are constants, as jax.jit's static_argnums",
    )
    _add_options(search)
    search.add_argument(
        "--verify",
        action="store_true",
        help="compile the plan (for TPUs and GPUs that are not here, too, where their compiler is installed) and compare "
        "collectives and memory with the prediction; where the arguments are arrays and the devices present, also run it "
        "beside a single device. Exit code 1 if something differs",
    )
    search.add_argument(
        "-o", "--output", type=Path, metavar="PATH", help="write the plan there as JSON. Default: only print it"
    )


def _add_options(search: argparse.ArgumentParser) -> None:
    defaults = Options()
    search.add_argument(
        "--time-limit",
        dest="time_limit_s",
        type=float,
        metavar="SECONDS",
        help=f"seconds for the whole search; the best plan by then is kept, with its bound. Default: "
        f"{defaults.time_limit_s:g}",
    )
    search.add_argument(
        "--check",
        choices=("auto", "always", "never"),
        help="whether the plan is compiled before it is handed over, also for devices that are not here, where their "
        f"compiler is installed, and run where they are here. Default: {defaults.check}",
    )
    search.add_argument(
        "--refine",
        choices=REFINES,
        help="whether the most promising plans are compiled for the topology (none of its devices need be present), or "
        "run on the devices, and the fastest taken; in up to half of --time-limit. Default: "
        f"{defaults.refine}",
    )
    search.add_argument(
        "--cache", metavar="FOLDER", help="keep the compiles of --refine there. Default: they are not kept"
    )
    search.add_argument(
        "--cost-model",
        choices=("analytic", "measured"),
        help="seconds from data sheets (analytic) or from a profile that 'calibrate' wrote (measured). Default: "
        f"{defaults.cost_model}",
    )
    search.add_argument(
        "--profile", metavar="PATH", help="the profile of --cost-model measured. Default: where 'calibrate' writes it"
    )
    search.add_argument("--max-axes", type=int, metavar="N", help=f"most mesh axes. Default: {defaults.max_axes}")
    search.add_argument(
        "--while-trips",
        type=float,
        metavar="N",
        help=f"passes assumed of a loop whose length is not static. Default: {defaults.while_trips:g}",
    )
    search.add_argument(
        "--seed", type=int, metavar="N", help=f"of all that is random in the search. Default: {defaults.seed}"
    )


def _add_show(commands: Any) -> None:
    show = commands.add_parser("show", help="print a saved plan", description="Prints a plan that 'search' wrote.")
    show.set_defaults(command=_show)
    show.add_argument("plan", metavar="PLAN.json", help="the plan's file")


def _add_calibrate(commands: Any) -> None:
    measure = commands.add_parser(
        "calibrate",
        help="measure the devices here for --cost-model measured",
        description="Times matmuls, elementwise passes and each collective on the devices jax finds here, fits latency "
        "and throughput, prints them and keeps them, stamped with machine, JAX version and date. For virtual CPU "
        "devices set XLA_FLAGS=--xla_force_host_platform_device_count=8.",
    )
    measure.set_defaults(command=_calibrate)
    measure.add_argument(
        "--budget",
        type=float,
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
    measure.add_argument("--devices", type=int, metavar="N", help="measure the first N devices. Default: all")
    measure.add_argument("--seed", type=int, default=0, metavar="N", help="of the data. Default: %(default)s")
    measure.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="PATH",
        help="write the profile there as JSON. Default: under ~/.cache/meshwright, where the measured cost model looks "
        "for it",
    )
