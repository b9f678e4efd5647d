"""The specs of arrays that several programs share: as users pin them, as the plan of a program has them, moved between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jax.sharding import PartitionSpec

from planner.decision import Decision
from planner.errors import PinError
from planner.pricing.candidates.pins import exactly, matcher, pinned_dims
from planner.pricing.mesh import Shape
from planner.pricing.reshards.reshard import reshard_steps
from planner.request.layouts import leaves_of
from planner.request.matching_arrays import SharedArrays
from planner.request.resolve import PlanRequest
from planner.studies.joint import LayoutMove

Specs = Mapping[int, PartitionSpec]
"""The layout of shared arrays, by their numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSpecs:
    """What is said of the specs of the arrays that these requests share."""

    requests: Mapping[str, PlanRequest]
    shared: SharedArrays

    def pinned_by_users(self) -> dict[int, PartitionSpec]:
        """The layout that pins give to shared arrays: those of users first, then those of logical names and of `like`.

        Raises: PinError where they give one array two.
        """
        found: dict[int, tuple[PartitionSpec, str, bool]] = {}
        for of_users in (True, False):
            for number, spec, where in self._pinned(of_users):
                other, whose, first = found.setdefault(number, (spec, where, of_users))
                if other != spec and first == of_users:
                    raise PinError(
                        f"{where} and {whose} are one array, and are pinned as {spec} and {other}; pin them alike, give "
                        "None for one of them, or layouts='own'"
                    )
        return {number: spec for number, (spec, _, _) in found.items()}

    def _pinned(self, of_users: bool) -> Iterator[tuple[int, PartitionSpec, str]]:
        """(number, spec, name in words) of the shared arrays that users pinned, or that are pinned otherwise."""
        for program, numbers in self.shared.of.items():
            given = self.shared.pinned.get(program, ())
            pins = [
                (matcher(key), spec, key in given) for key, spec in self.requests[program].variants.request.pins.items()
            ]
            for position, number in numbers.items():
                name = self.shared.leaves[program][position].name
                spec, by_user = next(
                    ((spec, own) for matches, spec, own in reversed(pins) if matches(name)), (None, False)
                )
                if spec is not None and by_user == of_users:
                    yield number, spec, f"{name} of {program}"

    def pins(self, program: str, specs: Specs) -> dict[str, PartitionSpec]:
        """Pins of what a program has of the arrays whose layout is known."""
        leaves = self.shared.leaves[program]
        return {
            exactly(leaves[position].name): specs[number]
            for position, number in self.shared.of[program].items()
            if number in specs
        }

    def fix(self, program: str, decision: Decision, specs: dict[int, PartitionSpec]) -> None:
        """Adds the layout of what a program shares and none before it."""
        _, mine = leaves_of(decision)
        for position, number in self.shared.of[program].items():
            specs.setdefault(number, mine[position])

    def moves(self, order: Sequence[str], decisions: Mapping[str, Decision]) -> tuple[LayoutMove, ...]:
        """What calls of programs in layouts of their own move, from the layout of the first that has it or back."""
        home: dict[int, PartitionSpec] = {}
        found: list[LayoutMove] = []
        for program in order:
            decision = decisions[program]
            leaves, mine = leaves_of(decision)
            arguments = sum(not leaf.constant for leaf in decision.arguments)
            for position, number in self.shared.of[program].items():
                there, here = home.get(number, mine[position]), mine[position]
                if there != here:
                    pair = (there, here) if position < arguments else (here, there)
                    found.append(self.move(program, leaves[position].name, position, pair, decision.mesh_shape))
            for position, number in self.shared.of[program].items():
                home.setdefault(number, mine[position])
        return tuple(found)

    def move(
        self, program: str, name: str, position: int, pair: tuple[PartitionSpec, PartitionSpec], shape: Shape
    ) -> LayoutMove:
        """What it takes to bring an array from one spec to another."""
        aval = self.shared.leaves[program][position].aval
        mesh = self.requests[program].problem.mesh(shape)
        source, target = (mesh.locations(pinned_dims(name, spec, aval.shape, shape)) for spec in pair)
        partial = (False,) * len(mesh.sizes)
        steps = reshard_steps(mesh, source, partial, target, shape=aval.shape, whole_bytes=aval.bytes)
        moving = [(step.kind, step.mask, step.bytes) for step in steps if step.kind is not None]
        return LayoutMove(
            program=program,
            array=name,
            source=pair[0],
            target=pair[1],
            bytes=sum(bytes for _, _, bytes in moving),
            seconds=sum(mesh.collective_seconds(kind, mask, bytes) for kind, mask, bytes in moving),
            value=sum(
                float(mesh.fixed[kind][mask] + mesh.per_byte[kind][mask] * bytes) for kind, mask, bytes in moving
            ),
        )
