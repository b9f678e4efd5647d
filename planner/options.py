"""Options of a planning run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pbqp.options import GAP, Share
from planner.errors import ArgumentError
from planner.units import quantity

Microbatches = Literal["auto"] | int
"""Whether layers share: where it loses nothing or the problem is large ("auto"), wherever they repeat, or never."""


Unit = Literal["s", "J", "B"]
UNITS: Mapping[str, Unit] = {"time": "s", "energy": "J", "memory": "B"}
"""The units of what a search minimises, by objective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the search has seen so far: meshes finished of all, the mesh just begun or finished, best value and bound.

    Told before and after every mesh. Value and bound are in `unit`; `stage` says which of several searches it is.
    """

    tried: int
    total: int
    mesh: Mapping[str, int]
    incumbent: float
    bound: float
    seconds: float
    unit: Unit = "s"
    stage: str = ""

    def __str__(self) -> str:
        mesh = " ".join(f"{name}={size}" for name, size in self.mesh.items())
        stage = f"{self.stage}: " if self.stage else ""
        return f"{stage}mesh {self.tried}/{self.total} {mesh}: {self.found} ({self.seconds:.1f} s)"

    @property
    def found(self) -> str:
        """The best value and the bound so far, in words."""
        if not math.isfinite(self.incumbent):
            return "no plan yet"
        return f"best {quantity(self.incumbent, self.unit)}, bound {quantity(max(self.bound, 0.0), self.unit)}"


Recompute = Literal["auto", "as written", "none", "full"] | Mapping[str, Literal["save", "recompute"]]
RECOMPUTES = ("auto", "as written", "none", "full")
"""What is said of values that a backward pass reads of its forward pass."""
PINNED = ("save", "recompute")
"""What is said of some of them, by name."""

ANNOTATIONS = ("keep", "free")
Check = Literal["auto", "always", "never"]
CHECKS = ("auto", "always", "never")
COST_MODELS = ("analytic", "measured")
Refine = Literal["never", "compile", "measure"]
REFINES = ("never", "compile", "measure")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to plan.

    `time_limit_s`: seconds for the whole search; what was found by then is returned with its bound. The first large program
    on a machine takes ten to twenty seconds more, in which the solver's inner loops are compiled and kept.
    `check`: "auto" compiles the plan, and runs it beside the single device where the arguments are concrete and that is
    affordable; for devices that are not here it compiles where their compiler is installed and that is affordable, in a
    child process; "always" does all of this at any price; "never" trusts the prediction. `Plan.checked` says what was not
    checked. Where nothing is predicted to fit and a compiler is there, the plan that needs little more is compiled whatever
    its size, as the compiler may compute values again to save memory: what it finds to fit is returned, and says so.
    `cost_model`: "analytic" (roofline and collective algorithms) or "measured" (a profile of these devices).
    `profile`: the profile's file for "measured"; default where `python -m planner calibrate` writes it, or what comes
    with the package for v4, v5e and v5p. The notes say which it is.
    `gap`: the part of the value within which the best plan under a memory limit is proven to be the best; where it is less,
    the search goes on, while the time lasts, only until it is that. Of a mesh with more than 50,000 strategies, up to five
    times as much may stay.
    `recompute`: which values of the forward pass are saved for the backward pass, and which are computed again: "auto"
    chooses, where that gains 2 % or lets a plan fit, and says so; "as written" keeps to the program and its
    `jax.checkpoint`s; "none" saves everything, "full" computes again whatever can be. A mapping from patterns over their
    names (of `checkpoint_name`, else as intermediates are named, as the notes and `explain` print them) to "save" or
    "recompute" says it of some, and leaves the others to "auto"; a later pattern wins.
    `seed`: of everything random in the solver and in verification.
    `annotations`: what becomes of placements that the program names itself: `with_sharding_constraint`, logical constraints
    of Flax under their rules, shardings of inner `jit`s, `shard_map`s. "keep": its mesh and these placements are part of
    the plan. "free": they are taken out, and `shard_map`s opened to what they compute on global arrays, so that the planner
    may find a better mesh and better specs; the notes say how many and where, and which `shard_map`s cannot be opened and
    stay. A `pmap` is free either way, and so is what names a mesh of one device. `audit` prices both.
    `max_axes`: most mesh axes searched. `while_trips`: trip count assumed for loops whose counter does not say it, or
    a mapping from patterns over their source lines (`*/solve.py:12`, as the plan's notes print them) to trip counts.
    `share_layers`: whether layers written out one after the other share their decisions: "auto" where that is proven to
    lose nothing or the program is large, True wherever they repeat, False never. The notes say what it loses at most.
    `affordable_flops`: "auto" runs the numeric check up to this many operations of one device.
    `refine`: "compile" compiles the most promising plans for the topology (in child processes, without its devices),
    corrects the prices of this program by what comes out, solves again, and returns the plan of the fastest schedule that
    fits; "measure" does the same by running them on the devices at hand; "never" trusts the prices. It takes up to half of
    `time_limit_s`; `Plan.refined` says what was tried.
    `cache`: a folder in which plans are kept: the same program, asked the same by the same releases, gets the plan that was
    made of it, without a search, and `Plan.checked` says when it was checked; those of `plan_many` are kept together. The
    compiles of `refine` are kept there, too; None keeps nothing.
    `microbatches`: in how many passes the batch is taken, whose sums are added up: a number, where the program can be
    computed so with the same results, or "auto": one pass where a plan fits the memory limit then and more do not gain
    2 %, else as few as fit. What cannot be (a batch norm needs the whole batch) is told with the op.
    `inputs`: which arguments hosts bring anew with every call, such as a batch: names of arguments, or patterns over names
    (`batch/*`), whose first dim counts examples; () for none. "auto" concludes it where a program keeps a state: one that
    is neither fed back nor donated is an input where the weights in the state meet its examples one by one. What bringing
    them takes decides between plans that are about equally fast.
    `affordable_compile_s`: "auto" compiles for devices that are not here for at most so many seconds; up to `time_limit_s`
    where nothing is predicted to fit.
    `workers`: most processes that search meshes at the same time; None: as many as there are cores that this process may
    use, and as memory has room for. They are forked (on Linux; elsewhere there are none), and only where a search lasts
    more than a second. The plan does not depend on how many there are unless the time limit ends the search.
    `progress`: called with a `Progress` after every mesh; of several processes, on the one that searches.

    Raises: ArgumentError for a value that is none of these.
    """

    time_limit_s: float = 120.0
    check: Check = "auto"
    cost_model: Literal["analytic", "measured"] = "analytic"
    profile: str | None = None
    gap: float = GAP
    recompute: Recompute = "auto"
    annotations: Literal["keep", "free"] = "keep"
    seed: int = 0
    max_axes: int = 3
    while_trips: float | Mapping[str, float] = 1.0
    share_layers: Share = "auto"
    affordable_flops: float = 2e11
    refine: Refine = "never"
    cache: str | None = None
    microbatches: Microbatches = "auto"
    inputs: Literal["auto"] | Sequence[str] = "auto"
    affordable_compile_s: float = 60.0
    workers: int | None = None
    progress: Callable[[Progress], object] | None = None

    def __post_init__(self) -> None:
        _require(self.check in CHECKS, "check", self.check, "'auto', 'always' or 'never'")
        _require(self.cost_model in COST_MODELS, "cost_model", self.cost_model, "'analytic' or 'measured'")
        _require(_number(self.time_limit_s) and self.time_limit_s > 0, "time_limit_s", self.time_limit_s, "seconds > 0")
        _require(self.profile is None or isinstance(self.profile, str), "profile", self.profile, "a path, or None")
        _require(_number(self.gap) and 0 <= self.gap < 1, "gap", self.gap, "a part of the value: 0 <= gap < 1")
        _require(
            _is_recompute(self.recompute),
            "recompute",
            self.recompute,
            f"one of {', '.join(map(repr, RECOMPUTES))}, or a mapping from patterns to 'save' or 'recompute'",
        )
        _require(self.annotations in ANNOTATIONS, "annotations", self.annotations, "'keep' or 'free'")
        _require(type(self.seed) is int and self.seed >= 0, "seed", self.seed, "an integer of 0 or more")
        _require(self.max_axes in (1, 2, 3), "max_axes", self.max_axes, "1, 2 or 3")
        hints = self.while_trips.values() if isinstance(self.while_trips, Mapping) else (self.while_trips,)
        positive = all(_number(trips) and trips > 0 for trips in hints)
        _require(positive, "while_trips", self.while_trips, "a number > 0, or a mapping from patterns to such")
        sharing = self.share_layers == "auto" or isinstance(self.share_layers, bool)
        _require(sharing, "share_layers", self.share_layers, "'auto', True or False")
        affordable = _number(self.affordable_flops) and self.affordable_flops >= 0
        _require(affordable, "affordable_flops", self.affordable_flops, "a number of 0 or more")
        _require(self.refine in REFINES, "refine", self.refine, "'never', 'compile' or 'measure'")
        _require(self.cache is None or isinstance(self.cache, str), "cache", self.cache, "a path, or None")
        passes = self.microbatches == "auto" or (type(self.microbatches) is int and self.microbatches > 0)
        _require(passes, "microbatches", self.microbatches, "'auto', or a number of passes from 1 on")
        positive = _number(self.affordable_compile_s) and self.affordable_compile_s > 0
        _require(positive, "affordable_compile_s", self.affordable_compile_s, "seconds > 0")
        several = self.workers is None or (type(self.workers) is int and self.workers > 0)
        _require(several, "workers", self.workers, "a number of processes from 1 on, or None for what the machine has")
        named = self.inputs == "auto" or (
            isinstance(self.inputs, (tuple, list)) and all(isinstance(name, str) for name in self.inputs)
        )
        _require(named, "inputs", self.inputs, "'auto', or a tuple of names of arguments")
        callable_or_none = self.progress is None or callable(self.progress)
        _require(callable_or_none, "progress", self.progress, "a function of one argument, or None")


def _is_recompute(value: object) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(isinstance(name, str) and how in PINNED for name, how in value.items())
    return value in RECOMPUTES


def telling(options: Options, stage: str) -> Options:
    """The options for one of several searches, whose progress is told as of this stage."""
    told = options.progress

    def progress(seen: Progress) -> None:
        if told is not None:
            told(replace(seen, stage=stage))

    return replace(options, progress=told and progress)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ArgumentError(f"Options({name}={value!r}) is not possible; give {wanted}")
