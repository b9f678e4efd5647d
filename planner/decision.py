"""The decision: all that a plan decided and promises, as plain data that can be saved and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from jax.sharding import PartitionSpec

from cost_models import Topology
from planner.autotune_log import Refined
from planner.logical import NO_AXES, LogicalAxes
from planner.prediction import Predicted
from planner.printing.parts import Part, table_of
from planner.printing.printed import Printed
from planner.program.form import AS_WRITTEN, Form
from planner.program.slots import Refetch, Slot
from planner.program.tracing.traced import Annotations, Leaf
from planner.units import quantity

OPTIMAL_GAP = 2e-6
"""Gap below which a plan counts as optimal: that of floating-point sums and of ties between meshes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate(Printed):
    """How good the plan is among all of the search space, by the cost model: `lower_bound` <= any plan <= `value`.

    `value` and `lower_bound` are in `unit`; `gap` is (value - lower_bound) / value. `within_bytes`: it is among the plans
    that keep to so many bytes per device, less than what was asked for; None: among all that were asked for. These bounds
    are of plans in the form that was chosen: `any_form` <= any plan, whatever it saves for the backward pass and in however
    many microbatches, as what every form computes, and on TPUs what it communicates, takes so long; None: no other form
    could be chosen, or that is not known.
    `guessed_share` is the share of the plan's memory traffic that is of ops whose work nobody says (`Decision.guessed`), of
    which nothing else is known; None: there are none, or bytes are minimised.
    """

    value: float
    lower_bound: float
    unit: str
    solve_seconds: float
    meshes: int
    within_bytes: float | None = None
    any_form: float | None = None
    guessed_share: float | None = None

    def with_any_form(self, least: float | None) -> Certificate:
        """The same with a bound over all forms, of which this one is one."""
        return replace(self, any_form=None if least is None else min(least, self.lower_bound))

    @property
    def gap(self) -> float:
        """The share by which some plan could be better at most."""
        return max(0.0, (self.value - self.lower_bound) / self.value) if self.value > 0 else 0.0

    @property
    def status(self) -> str:
        """ "optimal", "within X %" or "not proven", and by what share of guesses, where there are any."""
        return f"{self.proven}{self.guesses}"

    @property
    def guesses(self) -> str:
        """ " by a cost model that guesses X % of the work", or ""."""
        if self.guessed_share is None:
            return ""
        percent = round(100 * self.guessed_share)
        share = f"{percent} %" if percent else "less than 1 %"
        return f" by a cost model that guesses {share} of the work"

    @property
    def proven(self) -> str:
        """ "optimal", "within X %" or "not proven": how good the plan is by the cost model, whatever that guesses."""
        if self.gap <= OPTIMAL_GAP:
            return "optimal"
        return f"within {100 * self.gap:.2g} %" if self.lower_bound > 0 else "not proven"

    def _parts(self) -> list[Part]:
        among = [] if self.within_bytes is None else [("among plans of at most", quantity(self.within_bytes, "B"))]
        rows = [
            ("value", f"{self.value:.6g} {self.unit}"),
            ("lower bound", f"{self.lower_bound:.6g} {self.unit}"),
            ("gap", f"{100 * self.gap:.2g} %"),
            *among,
            *([] if self.any_form is None else [("in any form", f"{self.any_form:.6g} {self.unit}")]),
            ("meshes", str(self.meshes)),
            ("searched for", quantity(self.solve_seconds, "s")),
        ]
        return [self.status, table_of("|>", rows)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpNote:
    """An op of which the planner knows less than of others; `op` is its primitive, or its kernel's name, if it has one.

    `name` says where it stands in the program, as `plan.constraints` names what it makes, and `source` in the user's code.
    """

    op: str
    source: str
    trips: float
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One check of a plan before it was handed over: `ok` is None where it was not made, and `detail` says why.

    `differs`: something is not as promised, though nothing that a plan is held to failed.
    """

    what: str
    ok: bool | None
    detail: str
    differs: bool = False

    @property
    def verdict(self) -> str:
        """In one word: "ok", "differs" or "FAILED"; "not checked" where it was not made."""
        if self.ok is None:
            return "not checked"
        return ("differs" if self.differs else "ok") if self.ok else "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was planned for beside the function: with it, the problem that the plan solves can be stated again.

    `platform` is that of the devices the plan was made to run on, None where there were none; `memory_limit` is in
    bytes per device. `process_local` are the arguments of which every process brings a part, and along which dim; `inputs`
    the names of those that hosts bring at every call, or "auto".
    """

    topology: Topology
    platform: str | None
    objective: str
    memory_limit: float
    cost_model: Literal["analytic", "measured"]
    profile: str | None
    while_trips: float | Mapping[str, float]
    pins: Mapping[str, PartitionSpec]
    annotations: Annotations = "keep"
    process_local: Mapping[str, int] = field(default_factory=dict[str, int])
    inputs: Literal["auto"] | tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A mesh of the search: no plan on it is below `bound`; `value` is that of its best plan, where one was made.

    Both are in the unit of the certificate. `bound` is None where nothing fits on the mesh.
    """

    mesh: Mapping[str, int]
    bound: float | None
    value: float | None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A plan without its function: the mesh, the specs of arguments and results, and those laid on places in between.

    A plan file holds these fields, in this order: what was decided first, then what is predicted and known of it.
    `fingerprint` identifies the traced program the places belong to, in the `form` in which it is computed; `arguments` and
    `results` are its leaves, and `in_tree` says how the leaves lie in the user's arguments, as the JSON of
    `plan_file.treedef`. `keywords` are the names of the arguments that are given by keyword: they are the last ones.
    `compiler_options` are those of the compiler of the topology's platform with which the prediction holds. `refetched` are
    the operands that are fetched again, instead of being held from an earlier reader on: their own constraints are laid on
    what waits for another value. `named` are those of its `intermediates` that the program names with `checkpoint_name`,
    `logical` the plan in terms of the indices that run through it. `choice` is the strategy chosen for every node of the
    problem that `request` states on this mesh. `refined` says how it was chosen where compilers or runs had a say, `tried`
    the meshes of the search in its order, `jax_version` the release by which it was made.

    `replicated` are the ops that were placed whole because no rule says how to split them, `by_shardy` those that have no
    rule of ours and were placed by that of Shardy's registry, `guessed` those whose work nobody says: they count one
    operation per result element.
    """

    function_name: str
    fingerprint: str
    form: Form = AS_WRITTEN
    topology: str
    request: Request
    mesh_shape: Mapping[str, int]
    arguments: tuple[Leaf, ...]
    in_specs: tuple[PartitionSpec, ...]
    results: tuple[Leaf, ...]
    out_specs: tuple[PartitionSpec, ...]
    in_tree: Any
    donate_argnums: tuple[int, ...]
    static_argnums: tuple[int, ...]
    keywords: tuple[str, ...] = ()
    compiler_options: Mapping[str, str] = field(default_factory=dict[str, str])
    constraints: Mapping[Slot, tuple[PartitionSpec, ...]]
    refetched: Mapping[Slot, Refetch] = field(default_factory=dict[Slot, Refetch])
    intermediates: Mapping[str, PartitionSpec]
    named: tuple[str, ...] = ()
    logical: LogicalAxes = NO_AXES
    choice: tuple[int, ...]
    replicated: tuple[OpNote, ...]
    by_shardy: tuple[OpNote, ...]
    guessed: tuple[OpNote, ...] = ()
    predicted: Predicted
    certificate: Certificate
    checked: tuple[Checked, ...]
    notes: tuple[str, ...]
    refined: Refined | None = None
    tried: tuple[Tried, ...] = ()
    jax_version: str

    @property
    def apart_above(self) -> float:
        """The bytes above which equal copies are fetched again (see `MemoryModel`): those that the plan keeps to."""
        return self.predicted.peak_bytes if self.refetched else self.request.memory_limit
