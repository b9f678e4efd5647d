"""Options of a planning run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from pbqp.options import GAP, Share
from planner.errors import ArgumentError
from planner.former_names import with_former_keywords
from planner.units import bytes_of, quantity

Microbatches = Literal["auto"] | int
"""Whether layers share: where it loses nothing or the problem is large ("auto"), wherever they repeat, or never."""


Unit = Literal["s", "J", "B"]
UNITS: Mapping[str, Unit] = {"time": "s", "energy": "J", "memory": "B"}
"""The units of what a search minimises, by objective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What planning is at: `doing` is tracing, modelling, checking a plan and so on, or "" for a search over meshes.

    A search tells it before and after every mesh: meshes finished of all, the mesh just begun or finished, the value of its
    best plan, and a bound, both in `unit`. Plans that are not `below` what is known already are not sought. `stage` says
    which of several searches it is. `seconds` are those since planning began, of `limit_s`.
    """

    doing: str = ""
    tried: int = 0
    total: int = 0
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])
    incumbent: float = math.inf
    bound: float = 0.0
    below: float = math.inf
    seconds: float = 0.0
    limit_s: float = math.inf
    unit: Unit = "s"
    stage: str = ""

    def __str__(self) -> str:
        what = self.doing or f"mesh {self.tried}/{self.total} {self.mesh_label}: {self.found}"
        limit = f" of {self.limit_s:g} s" if math.isfinite(self.limit_s) else ""
        return f"{self.of_stage}{what} ({self.seconds:.1f} s{limit})"

    @property
    def mesh_label(self) -> str:
        """The mesh that the search is at, as "data=4 model=2"."""
        return " ".join(f"{name}={size}" for name, size in self.mesh.items())

    @property
    def of_stage(self) -> str:
        """The stage with a colon, or ""."""
        return f"{self.stage}: " if self.stage else ""

    @property
    def found(self) -> str:
        """The best value and the bound so far, in words."""
        if not math.isfinite(self.incumbent):
            return (
                f"no plan below {quantity(self.below, self.unit)} yet" if math.isfinite(self.below) else "no plan yet"
            )
        return f"best {quantity(self.incumbent, self.unit)}, bound {quantity(max(self.bound, 0.0), self.unit)}"


Remat = Literal["auto", "as written", "none", "full"] | Mapping[str, Literal["save", "recompute"]]
"""Which values that a backward pass reads of its forward pass are saved; a mapping says it of some, by name."""
Offload = Literal["auto", "never"] | Mapping[str, Literal["host"]]
"""What waits in the memory of hosts; a mapping names it."""
Check = Literal["auto", "always", "never"]
Autotune = Literal["never", "compile", "measure"]


@with_former_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to plan. The first sentence about a field is also its help on the command line.

    `time_limit_s`: seconds for the whole search; the best plan by then is returned, with its bound. Not in it: tracing, the
    model of the program, which is made before the search, and the checks (`affordable_compile_s`). One mesh is always
    searched, for about a second or as long as its prices take. The first large program on a machine takes ten to twenty
    seconds more, in which the solver's inner loops are compiled and kept.

    `check`: whether the plan is compiled, and run beside the single device, before it is returned: where that is affordable
    ("auto"), at any price ("always"), or not at all ("never"). It runs where the arguments are concrete. For devices that
    are not here it compiles where their compiler is installed, in a child process. `Plan.checked` says what was not
    checked. Where nothing is predicted to fit and a compiler is there, the plan that needs little more is compiled whatever
    its size, as the compiler may compute values again to save memory: what it finds to fit is returned, and says so.

    `cost_model`: seconds from data sheets and formulas of collectives ("analytic"), or from a profile of these devices
    ("measured").

    `profile`: the profile's file for "measured"; default where `python -m planner calibrate` writes it, or what comes
    with the package for v4, v5e and v5p. The notes say which it is.

    `gap`: the part of the value within which the best plan under a memory limit is proven to be the best. Where it is less,
    the search goes on, while the time lasts, only until it is that. Of a mesh with more than 50,000 strategies, up to five
    times as much may stay.

    `remat`: which values of the forward pass are saved for the backward pass, and which are computed again: "auto"
    chooses, where that gains 2 % or lets a plan fit, and says so; "as written" keeps to the program and its
    `jax.checkpoint`s; "none" saves everything, "full" computes again whatever can be. A mapping from patterns over their
    names (of `checkpoint_name`, else as intermediates are named, as the notes and `explain` print them) to "save" or
    "recompute" says it of some, and leaves the others to "auto"; a later pattern wins.

    `offload`: whether values that are saved for the backward pass, the state of an optimizer and parameters may wait in the
    memory of hosts: where memory is short and that gains 2 % or lets a plan fit ("auto"; on TPUs), or not at all ("never").
    A mapping from patterns over names of saved values and of arguments to "host" sends some there, on GPUs as well, such as
    `{"opt_state/*": "host"}`. Of loops, each pass sends what it has saved. Arguments on hosts must be given away
    (`donate_argnums`); they are updated slice by slice, layer by layer where they have a dim of layers. Parameters wait
    where only loops read them besides, with the state that is updated with them. The links of hosts are those of the chips'
    rows (`cost_models`). The notes say what waits there, and how many bytes that are.

    `host_memory_limit`: bytes of the memory of hosts that one device's arrays may take, or text such as "40GB"; default 0.8
    of what Google Cloud's machines have for each.

    `annotations`: "keep" makes the mesh and the placements that the program names itself part of the plan, "free" takes
    them out, so that the planner may find a better mesh and better specs. Such are `with_sharding_constraint`, logical
    constraints of Flax under their rules, shardings of inner `jit`s, and `shard_map`s, which "free" opens to what they
    compute on global arrays. The notes say how many and where, and which `shard_map`s cannot be opened and stay. `plan`
    also searches with them, where the devices are enough for their mesh, and hands over the better of both. A `pmap` is
    free either way, and so is what names a mesh of one device. `audit` prices both.

    `seed`: of everything random in the solver and in verification.

    `max_axes`: most mesh axes searched.

    `while_trips`: trip count assumed for loops whose counter does not say it. A mapping from patterns over their source
    lines (`*/solve.py:12`, as the plan's notes print them) gives some of them their own.

    `share_layers`: whether layers written out one after the other share their decisions: "auto" where that is proven to
    lose nothing or the program is large, True wherever they repeat, False never. The notes say what it loses at most.

    `affordable_flops`: operations of one device up to which `check` "auto" runs the numeric one.

    `autotune`: whether the most promising plans are compiled for the topology ("compile", which needs none of its devices)
    or run on the devices at hand ("measure"), and the fastest of those that fit is taken. Compiles run in child processes.
    Each round corrects the prices of this program by what comes out, and solves again; "never" trusts the prices. It takes
    up to half of `time_limit_s`; `Plan.refined` says what was tried.

    `cache`: a folder in which plans are kept, and the compiles of `autotune`: the same program, asked the same by the same
    releases, gets the plan that was made of it, without a search. `Plan.checked` says when it was checked. Those of
    `plan_many` are kept together. None keeps nothing.

    `microbatches`: passes in which the batch is taken, whose sums are added up: a number, or "auto", which takes one where
    a plan fits the memory limit then and more do not gain 2 %, else as few as fit. The results stay the same; what cannot
    be (a batch norm needs the whole batch) is told with the op.

    `inputs`: which arguments hosts bring anew with every call, such as a batch: names of arguments, or patterns over names
    (`batch/*`). Their first dim counts examples; () is for none. "auto" concludes it where a program keeps a state: one
    that is neither fed back nor donated is an input where the weights in the state meet its examples one by one. What
    bringing them takes decides between plans that are about equally fast.

    `affordable_compile_s`: seconds for which `check` "auto" compiles for devices that are not here; up to `time_limit_s`
    where nothing is predicted to fit.

    `workers`: most processes that search meshes at the same time; by default as many as there are cores that this process
    may use, and as memory has room for. They are forked (on Linux; elsewhere there are none), and only where a search lasts
    more than a second. The plan does not depend on how many there are unless the time limit ends the search.

    `progress`: called with a `Progress` at every phase, and before and after every mesh; of several processes, on the one
    that searches. "auto" shows a bar in IPython and notebooks, and nothing elsewhere; None shows nothing.

    Raises: ArgumentError for a value that is none of these.
    """

    time_limit_s: float = 120.0
    check: Check = "auto"
    cost_model: Literal["analytic", "measured"] = "analytic"
    profile: str | None = None
    gap: float = GAP
    remat: Remat = "auto"
    offload: Offload = "auto"
    host_memory_limit: float | str | None = None
    annotations: Literal["keep", "free"] = "keep"
    seed: int = 0
    max_axes: int = 3
    while_trips: float | Mapping[str, float] = 1.0
    share_layers: Share = "auto"
    affordable_flops: float = 2e11
    autotune: Autotune = "never"
    cache: str | None = None
    microbatches: Microbatches = "auto"
    inputs: Literal["auto"] | Sequence[str] = "auto"
    affordable_compile_s: float = 60.0
    workers: int | None = None
    progress: Callable[[Progress], object] | Literal["auto"] | None = "auto"

    def __post_init__(self) -> None:
        for name, (holds, wanted) in _POSSIBLE.items():
            value = getattr(self, name)
            if not holds(value):
                raise ArgumentError(f"Options({name}={value!r}) is not possible; give {wanted}")


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _count(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_remat(value: object) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(isinstance(k, str) and how in ("save", "recompute") for k, how in value.items())
    return value in ("auto", "as written", "none", "full")


def _is_offload(value: object) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(isinstance(k, str) and how == "host" for k, how in value.items())
    return value in ("auto", "never")


def _is_size(value: Any) -> bool:
    with suppress(ValueError):
        return value is None or (bytes_of(value) if isinstance(value, str) else _positive(value) and value) > 0
    return False


def _is_trips(value: object) -> bool:
    return all(map(_positive, value.values() if isinstance(value, Mapping) else (value,)))


def _are_names(value: object) -> bool:
    return value == "auto" or (isinstance(value, (tuple, list)) and all(isinstance(name, str) for name in value))


_POSSIBLE: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "check": (lambda v: v in get_args(Check), "'auto', 'always' or 'never'"),
    "cost_model": (lambda v: v in ("analytic", "measured"), "'analytic' or 'measured'"),
    "time_limit_s": (_positive, "seconds > 0"),
    "profile": (lambda v: v is None or isinstance(v, str), "a path, or None"),
    "gap": (lambda v: _number(v) and 0 <= v < 1, "a part of the value: 0 <= gap < 1"),
    "remat": (
        _is_remat,
        "one of 'auto', 'as written', 'none', 'full', or a mapping from patterns to 'save' or 'recompute'",
    ),
    "offload": (_is_offload, "'auto', 'never', or a mapping from patterns to 'host'"),
    "host_memory_limit": (_is_size, "bytes > 0, or text such as '40GB'"),
    "annotations": (lambda v: v in ("keep", "free"), "'keep' or 'free'"),
    "seed": (lambda v: type(v) is int and v >= 0, "an integer of 0 or more"),
    "max_axes": (lambda v: v in (1, 2, 3), "1, 2 or 3"),
    "while_trips": (_is_trips, "a number > 0, or a mapping from patterns to such"),
    "share_layers": (lambda v: v == "auto" or isinstance(v, bool), "'auto', True or False"),
    "affordable_flops": (lambda v: _number(v) and v >= 0, "a number of 0 or more"),
    "autotune": (lambda v: v in get_args(Autotune), "'never', 'compile' or 'measure'"),
    "cache": (lambda v: v is None or isinstance(v, str), "a path, or None"),
    "microbatches": (lambda v: v == "auto" or _count(v), "'auto', or a number of passes from 1 on"),
    "affordable_compile_s": (_positive, "seconds > 0"),
    "workers": (lambda v: v is None or _count(v), "a number of processes from 1 on, or None for what the machine has"),
    "inputs": (_are_names, "'auto', or a tuple of names of arguments"),
    "progress": (lambda v: v is None or v == "auto" or callable(v), "a function of one argument, 'auto', or None"),
}
"""What every option may be, and the words that say so."""


def telling(options: Options, stage: str) -> Options:
    """The options for one of several searches, whose progress is told as of this stage, before stages within it."""
    show = options.progress
    if not callable(show):
        return options

    def progress(seen: Progress) -> None:
        show(replace(seen, stage=f"{stage}: {seen.stage}" if seen.stage else stage))

    return replace(options, progress=progress)


def tell(options: Options, doing: str) -> None:
    """Tells what planning is at."""
    if callable(options.progress):
        options.progress(Progress(doing=doing))
