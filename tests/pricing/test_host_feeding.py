"""What bringing inputs from hosts takes, and that plans are made with it in mind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import planner
from cost_models import CHIPS, parse_topology
from planner.decision import Decision
from planner.decisions.host_inputs import Input
from planner.errors import ArgumentError
from planner.plan_file.record import decision_of, record_of
from planner.pricing.host_feeding import COUNTED, Feeding, feeding_of
from planner.program.graph import Aval

X = Input(tensor=0, examples=0)
AVAL = Aval(shape=(64, 32), dtype="float32", itemsize=4)


def feeding(topology: str, sizes: tuple[int, ...], *, least_seconds: float = 0.0) -> Feeding:
    found = parse_topology(topology)
    order = found.order(sizes)
    assert order is not None
    return feeding_of({0: X}, found, found.hosts.reshape(-1)[order], least_seconds)


def where(*locations: int) -> Any:
    return np.asarray([locations], np.int8)


@pytest.mark.parametrize(
    ("topology", "sizes", "locations", "of_device", "of_host"),
    [
        ("v5e:4x4", (16,), (-1,), 1.0, 1.0),
        ("v5e:4x4", (16,), (1,), 1 / 16, 1.0),  # a host reads all examples to cut a part out of each
        ("v5e:4x4", (16,), (0,), 1 / 16, 1 / 4),
        ("v5e:4x4", (4, 4), (0, 0), 1 / 16, 1 / 4),
        ("v5e:4x4", (4, 4), (0, -1), 1 / 4, 1 / 2),  # hosts of 2 x 2 chips stand in two of four rows
        ("v5e:4x4", (4, 4), (0, 1), 1 / 16, 1 / 2),
        ("v5e:2x4", (8,), (0,), 1 / 8, 1.0),  # one machine
        ("h100:2x8", (2, 8), (0, -1), 1 / 2, 1 / 2),
        ("h100:2x8", (2, 8), (-1, 0), 1 / 8, 1.0),
    ],
)
def test_a_host_loads_the_examples_of_which_its_devices_need_a_part(
    topology: str, sizes: tuple[int, ...], locations: tuple[int, ...], of_device: float, of_host: float
) -> None:
    fed = feeding(topology, sizes).fed(X, AVAL, where(*locations))
    assert fed.device_bytes.tolist() == [of_device * AVAL.bytes]
    assert fed.host_bytes.tolist() == [of_host * AVAL.bytes]


def test_feeding_takes_the_way_through_the_network_and_over_the_link() -> None:
    chip = CHIPS["v5e"]
    by_example, by_feature = (feeding("v5e:4x4", (16,)).fed(X, AVAL, where(dim)) for dim in (0, 1))
    link = AVAL.bytes / 16 / chip.host_link_bytes_per_s
    assert by_example.seconds == pytest.approx(AVAL.bytes / 4 / (4 * chip.network_bytes_per_s) + link)
    # What is no piece of the host's memory is copied first.
    assert by_feature.seconds == pytest.approx(AVAL.bytes / (4 * chip.network_bytes_per_s) + 2 * link)


def test_a_part_of_the_seconds_counts_and_whole_examples_a_hundredth_of_the_step() -> None:
    whole, split = (feeding("v5e:4x4", (16,), least_seconds=1.0).fed(X, AVAL, where(dim)) for dim in (-1, 0))
    assert whole.counted == pytest.approx(COUNTED * whole.seconds + 1e-2)
    assert split.counted == pytest.approx(COUNTED * split.seconds + 1e-2 / 16)


def s(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def image_step(params: Any, batch: Any) -> Any:
    """A train step on images whose first convolution could as well be split by height."""

    def loss(params: Any) -> Any:
        x = jax.lax.conv_general_dilated(
            batch["image"], params["patch"], (14, 14), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = x.reshape(x.shape[0], -1, x.shape[-1])

        def layer(x: Any, w: Any) -> Any:
            return x + jax.nn.gelu(x @ w[0]) @ w[1], None

        x, _ = jax.lax.scan(jax.checkpoint(layer), x, (params["up"], params["down"]))
        return jnp.mean((x.mean((1, 2)) - batch["label"]) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients), value


IMAGES = (
    {"patch": s(14, 14, 3, 1152), "up": s(27, 1152, 4304), "down": s(27, 4304, 1152)},
    {"image": s(4096, 224, 224, 3), "label": s(4096)},
)


def planned(**options: Any) -> planner.Plan:
    return planner.plan(
        image_step,
        IMAGES,
        topology="v5e:4x4",
        donate_argnums=0,
        options=planner.Options(check="never", remat="as written", microbatches=1, **options),
    )


@pytest.fixture(scope="module")
def fed() -> planner.Plan:
    return planned()


def ways_split(plan: planner.Plan, name: str) -> tuple[int, ...]:
    """Into how many parts every dim of an array of images is split."""
    split = [1, 1, 1, 1]
    for dim, axes in enumerate(plan.in_specs[1][name]):
        names = (axes,) if isinstance(axes, str) else axes or ()
        split[dim] = math.prod(plan.decision.mesh_shape[axis] for axis in names)
    return tuple(split)


def test_images_come_split_by_examples_as_their_labels(fed: planner.Plan) -> None:
    specs: Mapping[str, P] = fed.in_specs[1]
    examples, *rest = specs["image"]
    assert examples
    assert not any(rest)
    assert specs["label"][0] == examples


def test_a_plan_says_what_bringing_its_inputs_takes(fed: planner.Plan) -> None:
    p = fed.predicted
    images = 4096 * 224 * 224 * 3 * 4
    assert p.fed_bytes == pytest.approx(images / 16, rel=1e-3)
    assert p.host_bytes == pytest.approx(images / 4, rel=1e-3)
    assert 0 < p.feed_seconds < p.seconds
    assert p.seconds == p.compute_seconds + p.communication_seconds
    assert "per device from hosts, of which one loads up to 617 MB" in str(fed)
    assert fed.certificate.status == "optimal"


def test_the_user_has_the_last_word_on_what_is_an_input(fed: planner.Plan) -> None:
    none, named = planned(inputs=()), planned(inputs=("batch/image",))
    assert none.predicted.feed_seconds == 0
    assert "from hosts" not in str(none)
    assert none.predicted.seconds <= fed.predicted.seconds
    assert ways_split(named, "image") == ways_split(fed, "image") == (16, 1, 1, 1)
    with pytest.raises(ArgumentError, match=r"inputs=.*names 'images', .*names look like .*'batch/image'"):
        planned(inputs=("images",))
    with pytest.raises(ArgumentError, match=r"inputs='batch'.*is not possible; give 'auto', or a tuple of names"):
        planner.Options(inputs="batch")  # pyright: ignore[reportArgumentType]


def test_an_explanation_names_what_must_be_brought(fed: planner.Plan) -> None:
    assert "more to bring from hosts" in str(fed.explain("batch/image"))


def test_files_of_planners_that_knew_no_inputs_are_read_and_are_plans_without_any(fed: planner.Plan) -> None:
    decision: Decision = fed.decision
    record = record_of(decision)
    assert decision_of(record).predicted == decision.predicted
    for name in ("feed_seconds", "fed_bytes", "host_bytes"):
        del record["predicted"][name]
    del record["request"]["inputs"]
    old = decision_of(record)
    assert (old.request.inputs, old.predicted.feed_seconds) == ((), 0.0)


def one_layer(w: Any, x: Any) -> Any:
    return w - jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)


@pytest.mark.parametrize(
    ("count", "words"), [(4099, "its 4099 examples do not divide over the axes of this mesh"), (4096, "")]
)
def test_a_large_input_that_stays_whole_is_named(count: int, words: str) -> None:
    p = planner.plan(
        one_layer,
        (s(8192, 8192), s(count, 8192)),
        topology="v5e:4x4",
        mesh={"x": 16},
        pins={"x": P()},
        donate_argnums=0,
        options=planner.Options(check="never"),
    )
    (note,) = [
        note for note in p.notes if note.startswith("the input x lies whole on each of 16 devices: 134 MB go to each")
    ]
    assert words in note


def test_feeding_that_takes_longer_than_a_step_is_told() -> None:
    p = planner.plan(
        one_layer,
        (s(64, 64), s(2**20, 64)),
        topology="v5e:4x4",
        donate_argnums=0,
        options=planner.Options(check="never"),
    )
    assert p.predicted.feed_seconds > p.predicted.seconds
    assert any("bringing the inputs from hosts takes" in note and "devices will wait" in note for note in p.notes)


def test_a_device_of_a_chip_with_two_has_half_of_its_link_and_both_have_all() -> None:
    whole = parse_topology("v4:2x2x1").megacore().chip
    assert whole.host_link_bytes_per_s == 2 * CHIPS["v4"].host_link_bytes_per_s
    assert all(
        math.isfinite(chip.host_link_bytes_per_s) and chip.host_link_bytes_per_s > 1e9 for chip in CHIPS.values()
    )
