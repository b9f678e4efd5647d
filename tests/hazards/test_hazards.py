"""No strategy that the planner offers is miscompiled: a sample of `make hazards`, and the known hazards kept out."""

from __future__ import annotations

import jax
import pytest

from planner.compiler.targets.table import CPU
from planner.emit.constraints import place
from planner.emit.halo_exchange import exchanges
from planner.emit.local_ops import local_calls
from planner.pricing.assignment import Chosen
from planner.pricing.candidates.hazards import HAZARDS
from planner.pricing.candidates.specs import spec_of
from tests.hazards import hazard_cases, hazard_hunt, hazard_known
from tests.hazards.hazard_trial import Bench

SAMPLE = (
    "conv_general_dilated 3 groups 1",
    "conv_general_dilated 3 groups 1 kernel gradient",
    "conv_general_dilated 3 stride 2 groups 4 input gradient",
    "conv_general_dilated 3 stride 2 groups 4 kernel gradient",
    "conv_general_dilated 3 groups 16",
    "conv_general_dilated 3 groups 16 kernel gradient",
    "conv_general_dilated 1 groups 8",
    "conv_general_dilated 1 groups 16 kernel gradient",
    "conv_general_dilated 3 batch groups 4",
    "dot_general bthd,bshd->bhts",
    "dot_general ikl,lkj->ij",
    "ragged_dot_general rows",
    "gather rows clip",
    "gather batched fill",
    "gather beyond both ends",
    "scatter clip beyond both ends",
    "scatter-add add embedding",
    "scatter-max max batched",
    "scatter of windows vmapped",
    "dynamic_slice (1, 16)",
    "dynamic_update_slice cache",
    "concatenate",
    "pad negative",
    "argmax of ties",
    "reduce_window_max pool SAME",
    "select_and_scatter_add SAME",
    "cumsum",
    "sort pairs",
    "random_bits split",
    "cholesky gradient",
    "fft RFFT",
    "program separable conv",
    "program embedding",
)
CHUNKS = 2
MOST = 4
"""Strategies tried of each case and mesh in the sample."""


@pytest.mark.sample
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_sample_of_the_hunt_finds_nothing(chunk: int) -> None:
    jobs = [(name, hazard_hunt.MESHES[chunk]) for name in SAMPLE[chunk::CHUNKS]]
    done = list(hazard_hunt.hunt(jobs, workers=1, most=MOST, everything=False))
    assert [found for _, tally in done for found in tally.found] == []
    assert all(tally.tried for _, tally in done)


def test_every_hazard_has_a_reproduction() -> None:
    assert set(HAZARDS) == set(hazard_known.CASES)


@pytest.mark.parametrize("name", hazard_known.CASES)
def test_known_hazards_are_not_left_to_the_compiler(name: str) -> None:
    """Either no strategy of the op gives its arrays these specs, or those that do are emitted by hand."""
    known, hazard = hazard_known.CASES[name], HAZARDS[name]
    types = ["i32" if n in (known.integers or ()) else "f32" for n in range(len(known.shapes))]
    case = hazard_cases.Case(
        name=name, function=known.function, shapes=tuple(known.shapes), types=tuple(types), ends=(3,) * len(types)
    )
    bench = Bench(case, known.mesh)
    model, names = bench.instance.model, bench.instance.mesh.names
    (op,) = [op for op in model.graph.ops if op.kind in hazard.primitives][-1:]
    group, placement = model.grouping.group_of[op.id], model.grouping.placements[op.id]
    arrays = list(zip((*op.operands, *op.results), (*placement.operands, *placement.results), strict=True))
    wanted = [str(spec) for spec, dims in zip(known.operands, known.shapes, strict=True) if dims] + [str(known.result)]
    strategies = bench.instance.strategies[group]

    def specs(pick: int) -> list[str]:
        ranks = [len(model.graph.tensors[tensor].aval.shape) for tensor, _ in arrays]
        found = [tuple(strategies.locations(dims)[pick]) for _, dims in arrays]
        return [str(spec_of(location, rank, names)) for location, rank in zip(found, ranks, strict=True) if rank]

    hits = [pick for node, pick in bench.choices() if node == group and specs(pick) == wanted]
    for pick in hits:
        constraints = place(Chosen(instance=bench.instance, choice=bench.following(group, pick)), CPU).constraints
        mesh = bench.target.jax_mesh(known.mesh)
        assert op.path in {
            **exchanges(model.graph, constraints, mesh),
            **local_calls(model.graph, constraints, mesh, CPU),
        }
    assert bool(hits) == (hazard.remedy == "by hand")


@pytest.mark.slow
@pytest.mark.parametrize("name", hazard_known.CASES)
def test_known_hazards_are_still_there(name: str) -> None:
    """Fails where this JAX has mended one: then see whether all supported ones have, and take it off the table."""
    mended = hazard_known.CASES[name].mended
    assert (hazard_known.verdict(name) == "mended") == (mended is not None and jax.__version_info__ >= mended)
