"""A memory limit that data parallelism exceeds makes the plan shard its state; an impossible one says what would do."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import InfeasibleError
from tests.small import assert_same, shapes, train_args, train_step

MESH = {"data": 8}
AS_WRITTEN = planner.Options(check="never", microbatches=1)
ARGS = train_args(width=128, batch=512)


def _plan(memory_limit: float | None = None) -> planner.Plan:
    return planner.plan(
        train_step, shapes(ARGS), mesh=MESH, donate_argnums=0, memory_limit=memory_limit, options=AS_WRITTEN
    )


def _state_bytes(p: planner.Plan) -> float:
    leaves = zip(jax.tree.leaves(p.in_shardings[0]), jax.tree.leaves(ARGS[0]), strict=True)
    return sum(leaf.dtype.itemsize * float(np.prod(sharding.shard_shape(leaf.shape))) for sharding, leaf in leaves)


@pytest.fixture(scope="module")
def whole_bytes() -> float:
    return float(sum(leaf.nbytes for leaf in jax.tree.leaves(ARGS[0])))


def test_parameters_and_optimizer_state_are_sharded_to_fit(whole_bytes: float) -> None:
    # Data parallelism keeps all of the state on every device, beside the gradients.
    limit = 0.8 * whole_bytes
    p = _plan(limit)
    assert p.predicted.peak_bytes <= limit
    assert _state_bytes(p) < 0.5 * whole_bytes
    assert p.in_specs[1] == P("data")
    state, x = ARGS
    assert_same(p(*jax.tree.map(lambda leaf: leaf.copy(), (state, x))), train_step(state, x))
    assert not p.verify(*ARGS).memory.differs


def test_a_tighter_limit_costs_more() -> None:
    free = _plan()
    limits = [share * free.predicted.peak_bytes for share in (0.6, 0.45)]
    plans = [_plan(limit) for limit in limits]
    assert all(p.predicted.peak_bytes <= limit for p, limit in zip(plans, limits, strict=True))
    assert free.certificate.value < plans[0].certificate.value <= plans[1].certificate.value


def test_an_impossible_limit_names_what_does_not_fit_and_what_would_do() -> None:
    with pytest.raises(
        InfeasibleError, match=r"no plan fits .* per device.*least memory.*Raise memory_limit"
    ) as caught:
        _plan(1e4)
    message, least = str(caught.value), caught.value.least_bytes
    assert "takes" in message
    assert "small.py" in message or "state/" in message
    assert least is not None
    assert caught.value.conflict
    assert all(
        name in message and ("small.py" in name or "end of the program" in name) for name in caught.value.conflict
    )
    enough = _plan(1.05 * least)
    assert enough.predicted.peak_bytes <= 1.05 * least
    with pytest.raises(InfeasibleError):
        _plan(0.9 * least)


def test_without_a_limit_a_device_has_what_its_chip_has() -> None:
    small = planner.Topology.custom(
        name="small",
        shape=(8,),
        link_bytes_per_s=(1e11,),
        flops_per_s=1e12,
        hbm_bytes=1e5,
        hbm_bytes_per_s=1e11,
    )
    with pytest.raises(InfeasibleError, match="no plan fits"):
        planner.plan(train_step, shapes(ARGS), topology=small, mesh=MESH, options=AS_WRITTEN)
