"""The front of choices: what is saved, from the fastest to the least."""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from cost_models import parse_topology
from planner.program.form import Form
from planner.program.jaxpr.remat.scopes import crossings, scope_of
from planner.program.tracing.trace import trace
from planner.transforms.apply import in_microbatches, with_values_saved
from planner.transforms.batch import batch_of
from planner.transforms.remat_choice import ALIKE, Choice, Front
from planner.transforms.remat_text import describe_remat
from tests.problems import small_program
from tests.transforms.loops import PROGRAMS, arguments

CHIP = parse_topology("v5e:4x4").chip


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_front_goes_from_fast_to_small(name: str) -> None:
    front = Front(crossings(trace(PROGRAMS[name](), arguments())), CHIP)
    offered = tuple(front.offered())
    for before, after in pairwise(offered):
        assert after.bytes < before.bytes
        assert after.seconds >= before.seconds * (1 - 1e-9)
    assert offered[0].seconds <= front.written.seconds * (1 + 1e-9)
    assert offered[-1].bytes <= front.written.bytes / ALIKE
    assert front.everything.flops <= front.nothing.flops


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_choice_leaves_nothing_out(name: str) -> None:
    found = crossings(trace(PROGRAMS[name](), arguments()))
    front = Front(found, CHIP)
    for choice in (*front.offered(), front.everything, front.nothing):
        for crossing, saved, repeated in zip(found, choice.saved, choice.repeated, strict=True):
            there = {*saved, *repeated}
            assert not set(saved) & set(repeated)
            assert {i for i, value in enumerate(crossing.values) if value.needed} <= there
            for i in repeated:
                assert crossing.values[i].repeatable
                assert set(crossing.values[i].operands) <= there


def test_everything_computes_no_matmul_again_and_nothing_all_of_them() -> None:
    found = crossings(trace(PROGRAMS["checkpointed"](), arguments()))
    front = Front(found, CHIP)

    def matmuls(repeated: tuple[int, ...]) -> int:
        return sum(step.kind == "dot_general" for i in repeated for step in found[0].values[i].steps)

    assert matmuls(front.everything.repeated[0]) == 0
    assert matmuls(front.nothing.repeated[0]) == matmuls(front.written.repeated[0]) == 1


def test_less_is_saved_where_saving_takes_more() -> None:
    front = Front(crossings(trace(PROGRAMS["checkpointed"](), arguments())), CHIP)
    before, dearer = front.everything, front.charged(front.everything, seconds=1.0)
    assert dearer.bytes < before.bytes
    assert dearer.flops > before.flops
    assert front.charged(before, seconds=0.0) == before
    assert front.charged(front.fastest, seconds=1e-15).saved == front.fastest.saved


def test_layers_written_out_that_save_everything_have_no_barrier() -> None:
    program = trace(PROGRAMS["written_out_checkpointed"](), arguments())
    front = Front(crossings(program), CHIP)
    everything = front.worth_saving(program_seconds=0.0)
    assert everything is not None

    def barriers(choice: Choice) -> int:
        formed = with_values_saved(program, Form(saved=choice.saved), lambda: scope_of(program))
        return str(formed.jaxpr).count("optimization_barrier")

    assert barriers(everything) == 0
    assert barriers(front.nothing) > 0


def test_casts_of_weights_of_layers_written_out_are_made_once_unless_memory_is_short() -> None:
    """A second cast would have devices that hold parts of a weight send each other what it is cast to twice."""

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for weight in weights:
            x = jax.checkpoint(lambda x, w: jnp.sin(x @ w.astype(x.dtype)))(x, weight)
        return jnp.sum(x)

    weights = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 4
    (crossing,) = crossings(
        trace(jax.value_and_grad(loss, (0, 1)), (weights, jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)))
    )
    front = Front([crossing], CHIP)
    casts = {
        i for i, value in enumerate(crossing.values) if [step.kind for step in value.steps] == ["convert_element_type"]
    }
    assert len(casts) == 4
    assert casts <= set(front.fastest.saved[0])
    assert casts <= set(front.nothing.repeated[0])


def test_prices_are_doubted_where_loops_compute_matmuls_again() -> None:
    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return x + jax.nn.softmax((x @ w) @ x.swapaxes(1, 2)) @ x, None

        return jnp.mean(lax.scan(jax.checkpoint(layer), x, weights)[0] ** 2)

    args = (jax.ShapeDtypeStruct((4, 64, 64), jnp.float32), jax.ShapeDtypeStruct((8, 4096, 64), jnp.float32))
    front = Front(crossings(trace(jax.grad(loss), args)), CHIP)
    again = {step.kind for i in front.fastest.repeated[0] for step in front.crossings[0].values[i].steps}
    assert "dot_general" in again
    assert front.worth_saving(program_seconds=100 * front.everything.seconds) == front.everything
    assert front.worth_saving(program_seconds=0.0) is None


def test_words_name_what_is_saved_and_computed_again() -> None:
    found = crossings(trace(PROGRAMS["checkpointed"](), arguments()))
    front = Front(found, CHIP)
    text = describe_remat(found, front.nothing, front.written, devices=8)
    assert "3 passes" in text
    assert "(carry)" in text
    assert "dot_general" in text


def test_microbatches_need_no_more_computed_again_than_the_whole_batch() -> None:
    """What both loops compute of what every part takes whole, such as angles of positions, is known to be the same."""
    program = small_program("llama")
    whole = Front(crossings(program), CHIP)
    parted = Front(crossings(in_microbatches(program, 2, batch_of(program))), CHIP, parts=2)
    assert parted.nothing.flops == pytest.approx(whole.nothing.flops, rel=0.01)
    assert parted.written.seconds == pytest.approx(whole.written.seconds, rel=0.05)
    for front in (whole, parted):
        assert front.everything.flops < 0.1 * front.nothing.flops


def test_what_stands_behind_the_last_layer_is_there_when_the_backward_pass_begins() -> None:
    """A loss over a vocabulary is neither saved nor computed again, however its layers are written."""
    (crossing,) = crossings(small_program("deep"))
    names = {value.name for value in crossing.values}
    assert "attention" in names
    assert not [name for name in names if "language.py" in name]
    assert Front((crossing,), CHIP).everything.flops < 0.1 * Front((crossing,), CHIP).nothing.flops


def test_a_kernel_is_paid_once_for_all_that_it_makes() -> None:
    found = crossings(trace(PROGRAMS["pallas"](), arguments()))
    front = Front(found, CHIP)
    made = [(0, i) for i, value in enumerate(found[0].values) if value.steps and value.steps[0].kind == "pallas_call"]
    assert len(made) == 2
    assert front.repeating(made)[1:] == front.repeating(made[:1])[1:]
    least = front.nothing
    assert {i for _, i in made} <= set(least.repeated[0])
    one_by_one = sum(front.repeating([(0, i)])[2] for i in least.repeated[0])
    assert least.flops == pytest.approx(one_by_one - front.repeating(made[:1])[2])
