"""Reading collectives and memory out of compiled programs, from HLO texts of real compiles (tests/data)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from planner.errors import ArgumentError
from planner.verify.hlo import schedule, work
from planner.verify.hlo.collectives import CompiledCollective, read_collectives
from planner.verify.hlo.groups import axes_of
from planner.verify.hlo.memory import memory_of
from planner.verify.hlo.text import bytes_of, parse_module

DATA = Path(__file__).parent / "data"
MESH = {"data": 4, "model": 2}
RATES = schedule.Rates(flops_per_s=1.6e14, hbm_bytes_per_s=8.1e11)


def ring(link_bytes_per_s: float, hop_seconds: float = 0.0) -> Callable[[CompiledCollective], float]:
    """The price of a collective as a ring of links."""
    return lambda c: schedule.ring_seconds(c.kind, c.bytes, c.group_size, link_bytes_per_s, hop_seconds)


def summary(name: str) -> list[tuple[object, ...]]:
    found = read_collectives((DATA / f"{name}.hlo").read_text(), num_devices=8)
    return [(c.kind, c.bytes, c.dtypes[0], c.axes(MESH), c.trip_count, c.promoted) for c in found]


CASES = {
    "cpu_bfloat16_scan": [
        ("all-reduce", 2048, "f32", ("model",), 5, True),
        ("all-gather", 2048, "f32", ("model",), 1, True),
        ("all-reduce", 4, "f32", ("data",), 1, False),
        ("all-to-all", 1024, "f32", ("data",), 1, True),
    ],
    "cpu_bfloat16_shard_map": [
        ("all-reduce", 1024, "f32", ("model",), 5, True),
        ("collective-permute", 1024, "f32", ("data",), 5, True),
        ("all-gather", 4096, "f32", ("data",), 1, True),
        ("all-to-all", 1024, "f32", ("model",), 1, True),
        ("reduce-scatter", 4096, "f32", ("data", "model"), 1, True),
    ],
    "cpu_float32_scan": [
        ("all-reduce", 2048, "f32", ("model",), 5, False),
        ("all-gather", 2048, "f32", ("model",), 1, False),
        ("all-reduce", 4, "f32", ("data",), 1, False),
        ("all-to-all", 1024, "f32", ("data",), 1, False),
    ],
    "gpu_h100_scan": [
        ("all-gather", 4 << 20, "bf16", ("data",), 3, False),
        ("all-reduce", 2 << 20, "bf16", ("model",), 3, False),
        ("all-gather", 4 << 20, "bf16", ("data",), 3, False),
        ("reduce-scatter", 4 << 20, "bf16", ("data",), 3, False),
        ("all-reduce", 2 << 20, "bf16", ("model",), 3, False),
        ("all-reduce", 4, "f32", ("data",), 1, False),
    ],
    "tpu_7x_scan": [
        ("all-gather", 2 << 20, "bf16", ("data",), 3, False),
        ("all-gather", 2 << 20, "bf16", ("data",), 3, False),
        ("all-reduce", 2 << 20, "bf16", ("model",), 3, False),
        ("all-gather", 2 << 20, "bf16", ("data",), 3, False),
        ("all-gather", 2 << 20, "bf16", ("data",), 3, False),
        ("reduce-scatter", 2 << 20, "bf16", ("data",), 3, False),
        ("all-reduce", 2 << 20, "bf16", ("model",), 3, False),
        ("reduce-scatter", 2 << 20, "bf16", ("data",), 3, False),
        ("all-reduce", 4, "f32", ("data",), 1, False),
    ],
    "tpu_v5e_scan": [
        ("all-gather", 2 << 20, "bf16", ("data",), 3, False),
        ("all-gather", 2 << 20, "bf16", ("data",), 3, False),
        ("all-reduce", 2 << 20, "bf16", ("model",), 3, False),
        ("all-gather", 2 << 20, "bf16", ("data",), 3, False),
        ("all-gather", 2 << 20, "bf16", ("data",), 3, False),
        ("all-reduce", 2 << 20, "bf16", ("model",), 3, False),
        ("reduce-scatter", 4 << 20, "bf16", ("data",), 3, False),
        ("all-reduce", 4, "f32", ("data",), 1, False),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_collectives_of_real_programs(name: str) -> None:
    assert summary(name) == CASES[name]


def test_source_lines_and_names() -> None:
    first = read_collectives((DATA / "cpu_float32_scan.hlo").read_text(), num_devices=8)[0]
    assert first.source == "program.py:10"
    assert first.op_name == "jit(f)/while/body/closed_call/dot_general"
    assert first.logical_bytes == first.bytes


def program(line: str, parameter: str = "f32[8,4]{1,0}", shape: str = "f32[8,4]{1,0}") -> str:
    return (
        "HloModule m, is_scheduled=true, num_partitions=8\n\n"
        f"ENTRY %main (p: f32[8,4]) -> f32[8,4] {{\n  %p = {parameter} parameter(0)\n"
        f"  ROOT %r = {shape} {line}\n}}\n"
    )


GROUP_CASES = {
    "all, empty": ("replica_groups={}, use_global_device_ids=true", (tuple(range(8)),)),
    "iota": ("replica_groups=[4,2]<=[8], use_global_device_ids=true", ((0, 1), (2, 3), (4, 5), (6, 7))),
    "iota transposed": (
        "replica_groups=[4,2]<=[2,2,2]T(2,1,0), use_global_device_ids=true",
        ((0, 4), (2, 6), (1, 5), (3, 7)),
    ),
    "lists": ("replica_groups={{0,2},{1,3}}, use_global_device_ids=true", ((0, 2), (1, 3))),
    "mesh": (
        "replica_groups=mesh['a'=4,'b'=2] {'a'}, use_global_device_ids=true",
        ((0, 2, 4, 6), (1, 3, 5, 7)),
    ),
    "mesh, device list": (
        "replica_groups=mesh['a'=4,'b'=2], device_ids=(7,6,5,4,3,2,1,0) {'b'}, use_global_device_ids=true",
        ((7, 6), (5, 4), (3, 2), (1, 0)),
    ),
    "mesh, iota": (
        "replica_groups=mesh['a'=1,'b'=2,'c'=4], device_ids=([4,2]T(1,0)) {'c'}, use_global_device_ids=true",
        ((0, 2, 4, 6), (1, 3, 5, 7)),
    ),
    "mesh, part of an axis": (
        "replica_groups=mesh['a'=8] {'a':(2)2}, use_global_device_ids=true",
        ((0, 2), (1, 3), (4, 6), (5, 7)),
    ),
    "replicas": ("replica_groups={{0}}", (tuple(range(8)),)),
}


@pytest.mark.parametrize("name", GROUP_CASES)
def test_replica_groups(name: str) -> None:
    text, groups = GROUP_CASES[name]
    (found,) = read_collectives(program(f"all-reduce(%p), channel_id=1, {text}, to_apply=%add"), num_devices=8)
    assert found.groups == groups
    assert found.group_size == len(groups[0])
    assert found.bytes == 8 * 4 * 4


def test_a_combined_all_reduce_sums_its_elements() -> None:
    text = """HloModule m, is_scheduled=true, num_partitions=8

ENTRY %main (p: bf16[8,4], q: f32[6]) -> f32[6] {
  %p = bf16[8,4]{1,0} parameter(0)
  %q = f32[6]{0} parameter(1)
  %a = (bf16[8,4]{1,0}, f32[6]{0}) all-reduce(%p, %q), channel_id=1, replica_groups=[1,8]<=[8], to_apply=%add
  ROOT %r = f32[6]{0} get-tuple-element(%a), index=1
}
"""
    (found,) = read_collectives(text, num_devices=8)
    assert (found.bytes, found.dtypes, found.group_size) == (8 * 4 * 2 + 6 * 4, ("bf16", "f32"), 8)


WRAPPED = """HloModule m, is_scheduled=true, num_partitions=8

%sent (w: f32[8,4]) -> f32[2,4] {
  %w = f32[8,4]{1,0} parameter(0)
  ROOT %s = f32[2,4]{1,0} reduce-scatter(%w), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, dimensions={0}, to_apply=%add
}

%called (v: f32[8,4]) -> f32[2,4] {
  %v = f32[8,4]{1,0} parameter(0)
  ROOT %call = f32[2,4]{1,0} custom-call(%v), custom_call_target="later", called_computations={%sent}
}, execution_thread="sparsecore"

ENTRY %main (p: f32[8,4]) -> f32[2,4] {
  %p = f32[8,4]{1,0} parameter(0)
"""  # noqa: E501


@pytest.mark.parametrize(
    "steps",
    [
        # As compilers write what they run asynchronously,
        """  %start = ((f32[8,4]{1,0}), f32[2,4]{1,0}) async-start(%p), calls=%sent
  %update = ((f32[8,4]{1,0}), f32[2,4]{1,0}) async-update(%start), calls=%sent
  ROOT %done = f32[2,4]{1,0} async-done(%update), calls=%sent
}
""",
        # libtpu 0.0.52 what SparseCores do, in schedules,
        """  %start = ((), (), s32[]) async-start(), async_execution_thread="sparsecore", calls=%called
  %update = ((f32[8,4]{1,0}), f32[2,4]{1,0}, s32[]) async-update(%start, %p)
  ROOT %done = f32[2,4]{1,0} async-done(%update)
}
""",
        # and in finished programs.
        """  %start = ((), (), s32[]) custom-call-start(), custom_call_target="later", called_computations={%sent}
  %update = ((f32[8,4]{1,0}), f32[2,4]{1,0}, s32[]) custom-call-update(%start, %p)
  ROOT %done = f32[2,4]{1,0} custom-call-done(%update)
}
""",
    ],
)
def test_a_wrapped_async_collective_counts_once(steps: str) -> None:
    text = WRAPPED + steps
    (found,) = read_collectives(text, num_devices=8)
    assert (found.kind, found.bytes, found.group_size, found.trip_count) == ("reduce-scatter", 128, 4, 1)
    rates = schedule.Rates(flops_per_s=1, hbm_bytes_per_s=1)
    assert (
        schedule.estimate_seconds(
            text, num_devices=8, rates=rates, collective_seconds=ring(96)
        ).exposed_collective_seconds
        == 0.5
    )


def test_groups_of_one_device_are_no_collectives() -> None:
    line = "all-reduce(%p), channel_id=1, replica_groups=[8,1]<=[8], use_global_device_ids=true, to_apply=%add"
    assert read_collectives(program(line), num_devices=8) == ()


def test_unknown_group_syntax_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="unknown syntax of replica groups"):
        read_collectives(program("all-reduce(%p), replica_groups=@later<x>, to_apply=%add"), num_devices=8)


def test_text_without_entry_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="no ENTRY"):
        read_collectives("stablehlo.add", num_devices=8)


BYTES_CASES = {
    "bf16[3,4]{1,0:T(8,128)(2,1)S(1)}": 24,
    "(f32[2], (s4[3]{0}, pred[5]), token[])": 8 + 1.5 + 5,
    "f8e4m3fn[7]": 7,
}


@pytest.mark.parametrize("shape", BYTES_CASES)
def test_bytes_of_shapes(shape: str) -> None:
    assert bytes_of(shape) == BYTES_CASES[shape]


def loop(condition: str, start: int, step: int, limit: int) -> str:
    return f"""HloModule m, is_scheduled=true, num_partitions=8

%body (b: (s32[], f32[8], s32[])) -> (s32[], f32[8], s32[]) {{
  %b = (s32[], f32[8]{{0}}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %x = f32[8]{{0}} get-tuple-element(%b), index=1
  %n = s32[] get-tuple-element(%b), index=2
  %one = s32[] constant({step})
  %next = s32[] add(%i, %one)
  %y = f32[8]{{0}} all-reduce(%x), channel_id=1, replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=%add
  ROOT %t = (s32[], f32[8]{{0}}, s32[]) tuple(%next, %y, %n)
}}

%condition (c: (s32[], f32[8], s32[])) -> pred[] {{
  %c = (s32[], f32[8]{{0}}, s32[]) parameter(0)
  %j = s32[] get-tuple-element(%c), index=0
  %carried = s32[] get-tuple-element(%c), index=2
  %limit = s32[] constant({limit})
  ROOT %less = pred[] {condition}
}}

ENTRY %main (p: f32[8]) -> f32[8] {{
  %p = f32[8]{{0}} parameter(0)
  %zero = s32[] constant({start})
  %end = s32[] constant({limit})
  %init = (s32[], f32[8]{{0}}, s32[]) tuple(%zero, %p, %end)
  %w = (s32[], f32[8]{{0}}, s32[]) while(%init), condition=%condition, body=%body
  ROOT %r = f32[8]{{0}} get-tuple-element(%w), index=1
}}
"""


LOOP_CASES = {
    "carried limit": ("compare(%j, %carried), direction=LT", 0, 1, 6, 6),
    "down": ("compare(%j, %limit), direction=GT", 6, -1, 0, 6),
    "down, inclusive": ("compare(%j, %limit), direction=GE", 6, -1, 0, 7),
    "inclusive": ("compare(%j, %limit), direction=LE", 0, 1, 6, 7),
    "mirrored": ("compare(%limit, %j), direction=GT", 0, 1, 6, 6),
    "step of two": ("compare(%j, %limit), direction=LT", 0, 2, 7, 4),
    "unequal": ("compare(%j, %limit), direction=NE", 0, 1, 6, 6),
    "unknown": ("not(%flag)", 0, 1, 6, None),
    "up": ("compare(%j, %limit), direction=LT", 2, 1, 6, 4),
}


@pytest.mark.parametrize("name", LOOP_CASES)
def test_trip_counts_from_conditions(name: str) -> None:
    condition, start, step, limit, trips = LOOP_CASES[name]
    (found,) = read_collectives(loop(condition, start, step, limit), num_devices=8)
    assert found.trip_count == trips


def nested(bound: str) -> str:
    """A loop of eight trips around one that runs up to a bound, made of its counter `%i`, of places, or of `%n`, 5."""
    return f"""HloModule m, is_scheduled=true, num_partitions=8

%body (b: (s32[], f32[8], s32[])) -> (s32[], f32[8], s32[]) {{
  %b = (s32[], f32[8]{{0}}, s32[]) parameter(0)
  %k = s32[] get-tuple-element(%b), index=0
  %x = f32[8]{{0}} get-tuple-element(%b), index=1
  %end = s32[] get-tuple-element(%b), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%k, %one)
  %y = f32[8]{{0}} all-reduce(%x), channel_id=1, replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=%add
  ROOT %t = (s32[], f32[8]{{0}}, s32[]) tuple(%next, %y, %end)
}}

%condition (c: (s32[], f32[8], s32[])) -> pred[] {{
  %c = (s32[], f32[8]{{0}}, s32[]) parameter(0)
  %j = s32[] get-tuple-element(%c), index=0
  %limit = s32[] get-tuple-element(%c), index=2
  ROOT %less = pred[] compare(%j, %limit), direction=LT
}}

%outer (o: (s32[], f32[8], s32[], s32[8])) -> (s32[], f32[8], s32[], s32[8]) {{
  %o = (s32[], f32[8]{{0}}, s32[], s32[8]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%o), index=0
  %z = f32[8]{{0}} get-tuple-element(%o), index=1
  %n = s32[] get-tuple-element(%o), index=2
  %places = s32[8]{{0}} get-tuple-element(%o), index=3
  %step = s32[] constant(1)
  %place = s32[1]{{0}} dynamic-slice(%places, %i), dynamic_slice_sizes={{1}}
  %bound = s32[] {bound}
  %zero = s32[] constant(0)
  %init = (s32[], f32[8]{{0}}, s32[]) tuple(%zero, %z, %bound)
  %w = (s32[], f32[8]{{0}}, s32[]) while(%init), condition=%condition, body=%body
  %v = f32[8]{{0}} get-tuple-element(%w), index=1
  %after = s32[] add(%i, %step)
  ROOT %u = (s32[], f32[8]{{0}}, s32[], s32[8]{{0}}) tuple(%after, %v, %n, %places)
}}

%until (u: (s32[], f32[8], s32[], s32[8])) -> pred[] {{
  %u = (s32[], f32[8]{{0}}, s32[], s32[8]{{0}}) parameter(0)
  %g = s32[] get-tuple-element(%u), index=0
  %eight = s32[] constant(8)
  ROOT %before = pred[] compare(%g, %eight), direction=LT
}}

ENTRY %main (p: f32[8]) -> f32[8] {{
  %p = f32[8]{{0}} parameter(0)
  %first = s32[] constant(0)
  %five = s32[] constant(5)
  %numbers = s32[8]{{0}} iota(), iota_dimension=0
  %begin = (s32[], f32[8]{{0}}, s32[], s32[8]{{0}}) tuple(%first, %p, %five, %numbers)
  %around = (s32[], f32[8]{{0}}, s32[], s32[8]{{0}}) while(%begin), condition=%until, body=%outer
  ROOT %r = f32[8]{{0}} get-tuple-element(%around), index=1
}}
"""


@pytest.mark.parametrize(
    ("bound", "trips"),
    [
        ("add(%i, %step)", 36),  # 1 + 2 + ... + 8
        ("copy(%n)", 40),
        ("add(%place, %step)", 36),
        ("subtract(%n, %i)", 15),  # 5 + 4 + ... + 1, and none after that
        ("negate(%n)", None),
    ],
)
def test_trip_counts_that_follow_from_a_loop_around(bound: str, trips: int | None) -> None:
    (found,) = read_collectives(nested(bound), num_devices=8)
    assert found.trip_count == trips


def test_the_metadata_of_a_kernel_goes_on_over_lines() -> None:
    call = """  %q = f32[8]{0} custom-call(%x), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block\\": 512}"
}}, metadata={op_name="jit(f)/kernel"}, backend_config={"custom_call_config":{"cost_estimate":{"flops":"64"}}}
"""
    condition, start, step, limit, trips = LOOP_CASES["up"]
    text = loop(condition, start, step, limit).replace("  %n = s32[]", call + "  %n = s32[]")
    (found,) = read_collectives(text, num_devices=8)
    assert found.trip_count == trips
    module = parse_module(text)
    body = module.computations["body"]
    assert work.instruction_flops(body.by_name["q"], body, module) == 64


INLINE_ELEMENTS = """HloModule m, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

%body (p: (s32[], f32[8,128], (f32[16], /*index=1*/f32[4,4]))) -> (s32[], f32[8,128], (f32[16], f32[4,4])) {
  %p = (s32[], f32[8,128]{1,0}, (f32[16]{0}, /*index=1*/f32[4,4]{1,0:S(1)})) parameter(0)
  %one = s32[] constant(1)
  %next = s32[] add(%p#0, %one)
  %reduced = f32[8,128]{1,0} all-reduce(%p#1), channel_id=1, replica_groups={{0,1}}, to_apply=%sum
  %inner = f32[4,4]{1,0} copy(%p#2#1)
  ROOT %out = (s32[], f32[8,128]{1,0}, (f32[16]{0}, f32[4,4]{1,0})) tuple(%next, %reduced, %p#2)
}

%condition (q: (s32[], f32[8,128], (f32[16], f32[4,4]))) -> pred[] {
  %three = s32[] constant(3)
  %q = (s32[], f32[8,128]{1,0}, (f32[16]{0}, f32[4,4]{1,0})) parameter(0)
  ROOT %lt = pred[] compare(%q#0, %three), direction=LT
}

ENTRY %main (x: f32[8,128], y: (f32[16], f32[4,4])) -> f32[8,128] {
  %x = f32[8,128]{1,0} parameter(0)
  %y = (f32[16]{0}, f32[4,4]{1,0}) parameter(1)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,128]{1,0:T(8,128)}, (f32[16]{0}, f32[4,4]{1,0})) tuple(%zero, %x, %y)
  %loop = (s32[], f32[8,128]{1,0}, (f32[16]{0}, f32[4,4]{1,0})) while(%start), condition=%condition, body=%body
  ROOT %result = f32[8,128]{1,0} copy(%loop#1)
}
"""
"""Elements of tuples as libtpu 0.0.50 writes them, an element of an element among them."""


def test_elements_of_tuples_among_the_operands() -> None:
    (found,) = read_collectives(INLINE_ELEMENTS, num_devices=2)
    assert (found.kind, found.bytes, found.trip_count) == ("all-reduce", 8 * 128 * 4, 3)
    body = parse_module(INLINE_ELEMENTS).computations["body"]
    assert [(i.name, bytes_of(i.shape), i.operands) for i in body.instructions if i.opcode == "get-tuple-element"] == [
        ("p#0", 4, ("p",)),
        ("p#1", 8 * 128 * 4, ("p",)),
        ("p#2", 16 * 4 + 4 * 4 * 4, ("p",)),
        ("p#2#1", 4 * 4 * 4, ("p#2",)),
    ]
    with pytest.raises(ArgumentError, match="is an element of no tuple"):
        parse_module(INLINE_ELEMENTS.replace("%loop#1", "%loop#7"))


BROKEN_LINES = """HloModule kernel, is_scheduled=true

ENTRY %main (x: f32[8,128]) -> f32[8,128] {
  %x = f32[8,128]{1,0} parameter(0)
  %kernel = f32[8,128]{1,0} custom-call(%x), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 512}"
}}, metadata={op_name="kernel"}
  ROOT %result = f32[8,128]{1,0} copy(%kernel)
}
"""
"""The metadata that Pallas kernels carry, on lines of their own."""


def test_an_instruction_may_have_its_attributes_on_several_lines() -> None:
    computation = parse_module(BROKEN_LINES).computations["main"]
    assert [i.name for i in computation.instructions] == ["x", "kernel", "result"]
    assert computation.root.name == "result"
    assert 'op_name="kernel"' in computation.by_name["kernel"].attributes


def test_axes_of_every_set_of_axes() -> None:
    shape, names = (2, 3, 4), ("x", "y", "z")
    devices = np.arange(24).reshape(shape)
    for subset in [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]:
        rest = [a for a in range(3) if a not in subset]
        groups = devices.transpose([*rest, *reversed(subset)]).reshape(-1, int(np.prod([shape[a] for a in subset])))
        assert axes_of(tuple(map(tuple, groups.tolist())), shape, names) == tuple(names[a] for a in subset)
    assert axes_of(((0, 1), (2, 3)), (2, 2), ("x", "y")) == ("y",)
    assert axes_of(((0, 3), (1, 2)), (2, 2), ("x", "y")) is None


def test_permutes_and_their_chains() -> None:
    line = "collective-permute(%p), channel_id=1, source_target_pairs={{0,2},{2,4},{4,6},{1,3}}"
    (found,) = read_collectives(program(line), num_devices=8)
    assert (found.group_size, found.axes(MESH), found.bytes) == (4, ("data",), 128)


def test_the_devices_here_agree() -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    by_rows = NamedSharding(mesh, P("data", None))

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        def body(carry: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
            return jax.lax.with_sharding_constraint(carry @ weight, NamedSharding(mesh, P("data", "model"))), None

        return jax.lax.scan(body, x, w)[0]

    split = NamedSharding(mesh, P("data", "model"))
    jitted = jax.jit(
        fn, in_shardings=(split, NamedSharding(mesh, P(None, "model"))), out_shardings=by_rows, donate_argnums=0
    )
    x, w = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 32), (5, 32, 32)))
    compiled = jitted.lower(x, w).compile()
    found = read_collectives(compiled.as_text(), num_devices=8)
    in_loop = [c for c in found if c.trip_count == 5]
    assert [(c.kind, c.axes(MESH)) for c in in_loop] == [("all-reduce", ("model",))]
    assert all(c.source.startswith(__file__) for c in in_loop)
    memory = memory_of(compiled)
    assert memory.argument_bytes == 64 * 32 * 4 // 8 + 5 * 32 * 32 * 4 // 2
    assert memory.output_bytes == 64 * 32 * 4 // 4


def test_schedule_of_a_finished_compile() -> None:
    text = (DATA / "tpu_v5e_scan.hlo").read_text()
    plain = schedule.estimate_seconds(text, num_devices=8, rates=RATES, collective_seconds=ring(46.7e9, 1e-6))
    # 3 layers, forward and backward: 3 * (2 + 4) products of 1024 x 1024 x 1024 per device
    assert plain.compute_seconds >= 3 * 6 * 2 * 1024**3 / RATES.flops_per_s
    assert plain.seconds == pytest.approx(plain.compute_seconds + plain.exposed_collective_seconds)
    assert 0 < plain.exposed_collective_seconds <= plain.collective_seconds
    assert plain.from_cycles == 0
    assert plain.unknown_loops == 0
    cycles = schedule.Rates(flops_per_s=1, hbm_bytes_per_s=1, clock_hz=1.5e9)
    assert (
        schedule.estimate_seconds(
            text, num_devices=8, rates=cycles, collective_seconds=lambda _: 0.0
        ).exposed_collective_seconds
        == 0
    )


def test_schedule_hides_what_runs_beside_compute() -> None:
    text = """HloModule m, is_scheduled=true, num_partitions=8

ENTRY %main (p: bf16[1024,1024]) -> bf16[1024,1024] {
  %p = bf16[1024,1024]{1,0} parameter(0)
  %s = (bf16[1024,1024]{1,0}, bf16[2048,1024]{1,0}) all-gather-start(%p), GROUPS, dimensions={0}
  %d = bf16[1024,1024]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %e = bf16[2048,1024]{1,0} all-gather-done(%s)
  ROOT %r = bf16[1024,1024]{1,0} slice(%e), slice={[0:1024], [0:1024]}
}
"""
    text = text.replace("GROUPS", "channel_id=1, replica_groups=[4,2]<=[8], use_global_device_ids=true")
    rates = schedule.Rates(flops_per_s=2e9, hbm_bytes_per_s=1e30)
    result = schedule.estimate_seconds(text, num_devices=8, rates=rates, collective_seconds=ring(2**21))
    assert result.collective_seconds == pytest.approx(0.5)
    assert result.compute_seconds == pytest.approx(1.073741824)
    assert result.exposed_collective_seconds == 0
    slower = schedule.Rates(flops_per_s=8e9, hbm_bytes_per_s=1e30)
    result = schedule.estimate_seconds(text, num_devices=8, rates=slower, collective_seconds=ring(2**21))
    assert result.exposed_collective_seconds == pytest.approx(0.5 - 1.073741824 / 4)


def test_schedule_waits_for_copies_to_hosts() -> None:
    text = """HloModule m, is_scheduled=true, num_partitions=1

%send (s: f32[8,1024], u: f32[1,1024], i: s32[]) -> f32[8,1024] {
  %s = f32[8,1024]{1,0:S(5)} parameter(0)
  %u = f32[1,1024]{1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %r = f32[8,1024]{1,0:S(5)} dynamic-update-slice(%s, %u, %i, %i)
}

ENTRY %main (p: bf16[1024,1024], s: f32[8,1024], u: f32[1,1024], i: s32[]) -> f32[8,1024] {
  %p = bf16[1024,1024]{1,0} parameter(0)
  %s = f32[8,1024]{1,0:S(5)} parameter(1)
  %u = f32[1,1024]{1,0} parameter(2)
  %i = s32[] parameter(3)
  %c = (f32[1024]{0}, f32[1024]{0:S(5)}, u32[]) copy-start(%s)
  %a = ((f32[8,1024]{1,0:S(5)}, f32[1,1024]{1,0}, s32[]), f32[8,1024]{1,0:S(5)}, u32[]) async-start(%s, %u, %i), calls=%send
  %d = bf16[1024,1024]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %b = f32[1024]{0} copy-done(%c)
  ROOT %e = f32[8,1024]{1,0:S(5)} async-done(%a), calls=%send
}
"""

    def exposed(host_bytes_per_s: float) -> float:
        rates = schedule.Rates(flops_per_s=2**31, hbm_bytes_per_s=1e30, host_bytes_per_s=host_bytes_per_s)
        found = schedule.estimate_seconds(text, num_devices=1, rates=rates, collective_seconds=lambda _: 0.0)
        assert found.compute_seconds == pytest.approx(1.0)
        return found.exposed_collective_seconds

    # Each way 4096 bytes, at the same time, beside one second of computing.
    assert exposed(1e9) == 0
    assert exposed(4096.0) == 0
    assert exposed(1024.0) == pytest.approx(3.0)


def test_unscheduled_text_is_refused() -> None:
    with pytest.raises(ArgumentError, match="is_scheduled"):
        schedule.estimate_seconds("HloModule m\n", num_devices=8, rates=RATES, collective_seconds=ring(46.7e9))


def test_padding_of_tiles_counts_as_traffic() -> None:
    assert work.hbm_bytes("bf16[64,100]{1,0:T(8,128)(2,1)}") == 2 * 64 * 128
    assert work.hbm_bytes("bf16[64,100]{0,1:T(8,128)(2,1)}") == 2 * 128 * 104
    assert work.hbm_bytes("(f32[3,5]{1,0}, f32[8,128]{1,0:T(8,128)S(1)})") == 4 * 15


def test_buffers_in_flight_are_carried_through_a_fusion_for_nothing() -> None:
    text = """HloModule m, is_scheduled=true, num_partitions=8

%f (a: bf16[1024,1024], b: bf16[1024,1024], w: bf16[4096,1024]) -> (bf16[1024,1024], bf16[4096,1024]) {
  %a = bf16[1024,1024]{1,0} parameter(0)
  %b = bf16[1024,1024]{1,0} parameter(1)
  %w = bf16[4096,1024]{1,0} parameter(2)
  %s = bf16[1024,1024]{1,0} add(%a, %b)
  ROOT %t = (bf16[1024,1024]{1,0}, bf16[4096,1024]{1,0}) tuple(%s, %w)
}

ENTRY %main (w: bf16[4096,1024], a: bf16[1024,1024], b: bf16[1024,1024]) -> bf16[1024,1024] {
  %w = bf16[4096,1024]{1,0} parameter(0)
  %a = bf16[1024,1024]{1,0} parameter(1)
  %b = bf16[1024,1024]{1,0} parameter(2)
  %x = (bf16[1024,1024]{1,0}, bf16[4096,1024]{1,0}) fusion(%a, %b, %w), kind=kLoop, output_to_operand_aliasing={{1}: (2, {})}, calls=%f, backend_config={"continuation_config":{"output_tuple_original_start":"0","output_tuple_original_end":"0","operand_original_start":"0","operand_original_end":"1"}}
  ROOT %r = bf16[1024,1024]{1,0} get-tuple-element(%x), index=0
}
"""  # noqa: E501
    module = parse_module(text)
    entry = module.computations[module.entry]
    assert work.hbm_bytes_of(entry.by_name["x"], entry, module) == 3 * 2 * 1024**2


def test_slices_are_found_in_nested_fusions() -> None:
    text = """HloModule m, is_scheduled=true, num_partitions=8

%inner (w: f32[8,64,64], i: s32[]) -> f32[64,64] {
  %w = f32[8,64,64]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %s = f32[1,64,64]{2,1,0} dynamic-slice(%w, %i, %i, %i), dynamic_slice_sizes={1,64,64}
  ROOT %b = f32[64,64]{1,0} bitcast(%s)
}

%outer (w: f32[8,64,64], i: s32[], x: f32[64,64]) -> f32[64,64] {
  %w = f32[8,64,64]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %x = f32[64,64]{1,0} parameter(2)
  %p = f32[64,64]{1,0} fusion(%w, %i), kind=kLoop, calls=%inner
  ROOT %d = f32[64,64]{1,0} dot(%x, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (w: f32[8,64,64], i: s32[], x: f32[64,64]) -> f32[64,64] {
  %w = f32[8,64,64]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %x = f32[64,64]{1,0} parameter(2)
  ROOT %f = f32[64,64]{1,0} fusion(%w, %i, %x), kind=kOutput, calls=%outer
}
"""
    module = parse_module(text)
    entry = module.computations[module.entry]
    fused = entry.by_name["f"]
    assert work.hbm_bytes_of(fused, entry, module) == 3 * 4 * 64 * 64 + 4
    assert work.instruction_flops(fused, entry, module) == 2 * 64**3
    assert work.instruction_flops(fused, entry, module, lanes=128) == 2 * 64 * 128**2


@pytest.mark.parametrize("first", ["", '"bytes_accessed":"64",'])  # libtpu 0.0.42, and 0.0.50, which sorts what it says
def test_a_kernel_takes_the_operations_that_it_says(first: str) -> None:
    config = f'{{"custom_call_config":{{"body":"TUz","cost_estimate":{{{first}"flops":"640","transcendentals":"8"}}}}}}'
    text = f"""HloModule m, is_scheduled=true, num_partitions=8

ENTRY %main (x: f32[64,64]) -> f32[64,64] {{
  %x = f32[64,64]{{1,0}} parameter(0)
  %k = f32[64,64]{{1,0}} custom-call(%x), custom_call_target="tpu_custom_call", backend_config={config}
  ROOT %o = f32[64,64]{{1,0}} custom-call(%k), custom_call_target="other"
}}
"""
    module = parse_module(text)
    entry = module.computations[module.entry]
    assert [work.instruction_flops(entry.by_name[name], entry, module) for name in ("k", "o")] == [640.0, 0.0]


def test_a_fusion_that_only_rearranges_is_seen_through() -> None:
    text = """HloModule m, is_scheduled=true, num_partitions=8

%tiled (w: s8[8,64,64]) -> s8[8,64,64] {
  %w = s8[8,64,64]{2,1,0:T(32,128)(4,1)} parameter(0)
  ROOT %c = s8[8,64,64]{2,1,0:T(8,128)(4,1)} copy(%w)
}

%outer (w: s8[8,64,64], i: s32[]) -> s8[64,64] {
  %w = s8[8,64,64]{2,1,0:T(32,128)(4,1)} parameter(0)
  %i = s32[] parameter(1)
  %t = s8[8,64,64]{2,1,0:T(8,128)(4,1)} fusion(%w), kind=kLoop, calls=%tiled
  %s = s8[1,64,64]{2,1,0} dynamic-slice(%t, %i, %i, %i), dynamic_slice_sizes={1,64,64}
  ROOT %b = s8[64,64]{1,0} bitcast(%s)
}

ENTRY %main (w: s8[8,64,64], i: s32[]) -> s8[64,64] {
  %w = s8[8,64,64]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %f = s8[64,64]{1,0} fusion(%w, %i), kind=kLoop, calls=%outer
}
"""
    module = parse_module(text)
    entry = module.computations[module.entry]
    assert work.hbm_bytes_of(entry.by_name["f"], entry, module) == 2 * 64 * 64 + 4


def test_an_update_is_written_in_the_type_of_its_stack() -> None:
    text = """HloModule m, is_scheduled=true

%into (s: bf16[4,64,64], u: f32[1,64,64], i: s32[]) -> bf16[4,64,64] {
  %s = bf16[4,64,64]{2,1,0} parameter(0)
  %u = f32[1,64,64]{2,1,0} parameter(1)
  %i = s32[] parameter(2)
  %e = f32[1,64,64]{2,1,0} exponential(%u)
  ROOT %d = bf16[4,64,64]{2,1,0} dynamic-update-slice(%s, %e, %i, %i, %i)
}

ENTRY %main (s: bf16[4,64,64], u: f32[1,64,64], i: s32[]) -> bf16[4,64,64] {
  %s = bf16[4,64,64]{2,1,0} parameter(0)
  %u = f32[1,64,64]{2,1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %f = bf16[4,64,64]{2,1,0} fusion(%s, %u, %i), kind=kLoop, calls=%into
}
"""
    module = parse_module(text)
    entry = module.computations[module.entry]
    assert work.hbm_bytes_of(entry.by_name["f"], entry, module) == (4 + 2) * 64 * 64 + 4


def test_the_gradient_of_a_convolutions_kernel_is_a_product_over_batch_and_positions() -> None:
    """A window wider than its steps is contracted: libtpu's own cycles are 1.56 times the raw work here, not 16 times."""
    text = """\
HloModule gradient, is_scheduled=true

ENTRY %main (x: bf16[8,28,28,128], dy: bf16[8,28,28,128]) -> bf16[3,3,128,128] {
  %x = bf16[8,28,28,128]{3,2,1,0} parameter(0)
  %dy = bf16[8,28,28,128]{3,2,1,0} parameter(1)
  ROOT %dw = bf16[3,3,128,128]{3,2,1,0} convolution(%x, %dy), window={size=28x28 pad=1_1x1_1}, dim_labels=f01b_i01o->01bf
}
"""
    module = parse_module(text)
    entry = module.computations[module.entry]
    met = sum(27 if tap != 1 else 28 for tap in range(3))  # rows of the image that a row of the kernel meets
    raw = 2 * 8 * 128 * 128 * met**2
    assert work.instruction_flops(entry.by_name["dw"], entry, module) == raw
    padded = work.instruction_flops(entry.by_name["dw"], entry, module, lanes=128)
    assert raw < padded < 1.02 * raw


PREFETCH = """\
HloModule prefetch, is_scheduled=true

%slicing (p: f32[4,1024,1024]) -> f32[1,1024,1024] {
  %p = f32[4,1024,1024]{2,1,0} parameter(0)
  ROOT %s = f32[1,1024,1024]{2,1,0:S(1)} slice(%p), slice={[0:1], [0:1024], [0:1024]}
}

ENTRY %main (p: f32[4,1024,1024], q: f32[2048,1024], x: f32[2048,1024], w: f32[1024,1024]) -> f32[2048,1024] {
  %p = f32[4,1024,1024]{2,1,0} parameter(0)
  %q = f32[2048,1024]{1,0} parameter(1)
  %x = f32[2048,1024]{1,0} parameter(2)
  %w = f32[1024,1024]{1,0} parameter(3)
  %room = f32[4,1024,1024]{2,1,0} custom-call(), custom_call_target="AllocateBuffer"
  %first = ((f32[4,1024,1024]{2,1,0}), f32[1,1024,1024]{2,1,0:S(1)}, s32[]) async-start(%p), calls=%slicing
  %second = (f32[2048,1024]{1,0:S(1)}, f32[2048,1024]{1,0}, u32[]) copy-start(%q)
  %y = f32[2048,1024]{1,0} OP
  %first.done = f32[1,1024,1024]{2,1,0:S(1)} async-done(%first)
  %u = f32[1,1024,1024]{2,1,0:S(1)} abs(%first.done)
  %second.done = f32[2048,1024]{1,0:S(1)} copy-done(%second)
  %v = f32[2048,1024]{1,0:S(1)} abs(%second.done)
  ROOT %r = f32[2048,1024]{1,0} negate(%y)
}
"""
"""Brings 4 and 8 MiB to the chip beside an op, before one that moves 16 MiB."""


@pytest.mark.parametrize(
    ("op", "flops_per_s", "seconds"),
    [
        # An op that moves 16 MiB leaves no time for what is brought beside it.
        ("negate(%x)", 1e30, 16 + 4 + 8 + 16),
        # A product of matrices that moves 20 MiB and multiplies for 30 seconds does, for 10 of 12 MiB.
        ("dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}", 2 * 2048 * 1024 * 1024 / 30, 30 + 2 + 16),
        # One that multiplies for 40 seconds does for all.
        ("dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}", 2 * 2048 * 1024 * 1024 / 40, 40 + 16),
    ],
    ids=["memory bound", "partly idle", "idle enough"],
)
def test_what_is_brought_to_the_chip_ahead_of_its_use_moves_while_the_memory_is_idle(
    op: str, flops_per_s: float, seconds: float
) -> None:
    rates = schedule.Rates(flops_per_s=flops_per_s, hbm_bytes_per_s=2**20)
    found = schedule.estimate_seconds(
        PREFETCH.replace("OP", op), num_devices=1, rates=rates, collective_seconds=ring(1.0)
    )
    assert found.seconds == found.compute_seconds == pytest.approx(seconds)


def test_fetches_go_on_while_a_loop_or_a_collective_leaves_the_memory_idle() -> None:
    """A loop of 3 trips moves 16 MiB in each; a collective takes 8 s."""
    text = """\
HloModule prefetch, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%body (s: (s32[], f32[2048,1024])) -> (s32[], f32[2048,1024]) {
  %s = (s32[], f32[2048,1024]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[2048,1024]{1,0} get-tuple-element(%s), index=1
  %y = f32[2048,1024]{1,0} negate(%x)
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
  ROOT %t = (s32[], f32[2048,1024]) tuple(%j, %y)
}

%condition (s: (s32[], f32[2048,1024])) -> pred[] {
  %s = (s32[], f32[2048,1024]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %trips = s32[] constant(3)
  ROOT %less = pred[] compare(%i, %trips), direction=LT
}

ENTRY %main (q: f32[8,1024,1024], x: f32[2048,1024]) -> f32[2048,1024] {
  %q = f32[8,1024,1024]{2,1,0} parameter(0)
  %x = f32[2048,1024]{1,0} parameter(1)
  %zero = s32[] constant(0)
  %before = (s32[], f32[2048,1024]) tuple(%zero, %x)
  %start = (f32[8,1024,1024]{2,1,0:S(1)}, f32[8,1024,1024]{2,1,0}, u32[]) copy-start(%q)
  %loop = (s32[], f32[2048,1024]) while(%before), condition=%condition, body=%body
  %y = f32[2048,1024]{1,0} get-tuple-element(%loop), index=1
  %sum = f32[2048,1024]{1,0} all-reduce(%y), channel_id=1, replica_groups={{0,1}}, to_apply=%add
  %done = f32[8,1024,1024]{2,1,0:S(1)} copy-done(%start)
  ROOT %r = f32[8,1024,1024]{2,1,0:S(1)} abs(%done)
}
"""
    rates = schedule.Rates(flops_per_s=1e30, hbm_bytes_per_s=2**20)
    found = schedule.estimate_seconds(text, num_devices=2, rates=rates, collective_seconds=lambda _: 8.0)
    # The loop moves all the time, the collective leaves 8 of the 32 s that the copy takes.
    assert found.seconds == pytest.approx(3 * 16 + 8 + 24, rel=1e-6)
    assert found.exposed_collective_seconds == 8.0
