"""Logical rules: names of dims, the program's own and the user's, become pins as Flax would read them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import PinError
from planner.logical import spec_by_rules
from planner.program.spec_entries import axes_of_spec

nn = pytest.importorskip("flax.linen")

X = jax.ShapeDtypeStruct((16, 8), jnp.float32)
QUICK = planner.Options(check="never", remat="as written", microbatches=1)
RULES = (("embed", None), ("mlp", "y"), ("batch", "x"))


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        kernel = nn.with_logical_partitioning(nn.initializers.ones, ("embed", "mlp"))
        return nn.Dense(32, use_bias=False, kernel_init=kernel)(x)


NET = Net()
BOXED = jax.eval_shape(lambda: NET.init(jax.random.key(0), jnp.ones(X.shape)))
KERNEL = "params/params/Dense_0/kernel/value"


def planned(**more: Any) -> planner.Plan:
    def fn(params: Any, x: Any) -> Any:
        return NET.apply(params, x)

    return planner.plan(fn, (BOXED, X), topology="v5e:2x2", mesh={"x": 2, "y": 2}, options=QUICK, **more)


def spec_of(plan: planner.Plan, name: str) -> tuple[tuple[str, ...], ...]:
    decision = plan.decision
    position = [leaf.name for leaf in decision.arguments].index(name)
    return axes_of_spec(decision.in_specs[position], len(decision.arguments[position].aval.shape))


@pytest.mark.parametrize("rules", [RULES, dict(RULES), [("mlp", ("x", "y"))], (("mlp", "y"), ("embed", "y"))])
def test_names_of_boxes_lie_as_flax_reads_the_rules(rules: Any) -> None:
    pairs = list(rules.items()) if isinstance(rules, dict) else list(rules)
    by_flax = nn.logical_to_mesh(P("embed", "mlp"), pairs)
    assert spec_of(planned(logical_rules=rules), KERNEL) == axes_of_spec(by_flax, 2)


def test_axes_that_the_mesh_does_not_have_split_nothing_and_are_told() -> None:
    rules = (("mlp", "tensor_transpose"), ("embed", ("fsdp", "x")), ("mlp", ("y", "expert")))
    plan = planned(logical_rules=rules)
    assert spec_of(plan, KERNEL) == (("x",), ("y",))
    (note,) = [note for note in plan.notes if "logical_rules" in note]
    assert note.endswith("and they split nothing: 'tensor_transpose', 'fsdp', 'expert'")


def test_rules_of_another_mesh_are_an_error() -> None:
    with pytest.raises(PinError, match="names the axis 'data'; use the mesh's axes, 'x', 'y'"):
        planned(logical_rules=(("mlp", "model"), ("embed", "data")))


def test_names_in_pins_are_read_by_rules() -> None:
    plan = planned(logical_rules=RULES, pins={"x": P("batch", "embed"), "out": P("x", "mlp")})
    assert spec_of(plan, "x") == (("x",), ())
    assert plan.out_specs == P("x", "y")


def test_a_tree_of_names_goes_before_the_names_of_boxes() -> None:
    tree = {"params": {"Dense_0": {"kernel": P("mlp", "embed")}}}
    assert spec_of(planned(logical_rules=RULES, pins={"params": tree}), KERNEL) == (("y",), ())


def test_what_flax_makes_of_names_is_a_pin_without_rules() -> None:
    tree = nn.logical_to_mesh(nn.get_partition_spec(BOXED), RULES)
    assert spec_of(planned(pins={"params": tree}), KERNEL) == ((), ("y",))


def test_without_rules_names_are_no_pins_and_that_is_told() -> None:
    plan = planned(pins={KERNEL: P("x")})
    assert spec_of(plan, KERNEL) == (("x",), ())
    (note,) = [note for note in plan.notes if "logical_rules" in note]
    assert "1 argument brings for the dims (embed, mlp) are no pins" in note
    assert not any("logical_rules" in note for note in planned(logical_rules=RULES).notes)


def test_names_of_nnx_are_read() -> None:
    nnx = pytest.importorskip("flax.nnx")
    kernel = nnx.Param(jnp.ones((8, 32)), out_sharding=("embed", "mlp"), eager_sharding=False)
    plan = planner.plan(
        lambda kernel, x: x @ kernel[...],
        (kernel, jnp.ones(X.shape)),
        topology="v5e:2x2",
        mesh={"x": 2, "y": 2},
        logical_rules=RULES,
        options=QUICK,
    )
    assert spec_of(plan, "kernel/value") == ((), ("y",))


@pytest.mark.parametrize(
    ("names", "rules"),
    [
        (("a", "b"), [("a", ("x",)), ("b", ("x",))]),
        (("a", "b"), [("b", ("x",)), ("a", ("x",)), ("a", ("y",))]),
        (("a", None, "c"), [("a", ("x", "y")), ("c", ())]),
        (("a", "b"), [("a", ()), ("a", ("x",))]),
        ((), [("a", ("x",))]),
    ],
)
def test_rules_are_read_as_flax_reads_them(names: Any, rules: Any) -> None:
    by_flax = nn.logical_to_mesh_axes(
        names, [(n, axes if len(axes) > 1 else axes[0] if axes else None) for n, axes in rules]
    )
    assert spec_by_rules(names, rules) == axes_of_spec(by_flax, len(names))


@pytest.mark.parametrize("rules", ["mlp", 3, ("mlp", "y"), (("mlp", 3),), ((3, "x"),), (("mlp", ("x", 1)),)])
def test_what_are_no_rules_is_told(rules: Any) -> None:
    with pytest.raises(PinError, match=r"logical_rules .*give pairs"):
        planned(logical_rules=rules)


def test_rules_of_axes_that_the_mesh_has_not_are_told() -> None:
    with pytest.raises(PinError, match="names the axis 'z'"):
        planned(logical_rules=(("mlp", "z"),))
