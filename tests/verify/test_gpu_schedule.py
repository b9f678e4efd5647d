"""The judge of GPU schedules, on small texts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_models import CHIPS, Chip
from planner.errors import ArgumentError
from planner.verify.hlo.collectives import CompiledCollective
from planner.verify.hlo.gpu_schedule import estimate_gpu_seconds
from planner.verify.hlo.schedule_walk import ScheduleEstimate

HEAD = "HloModule m, is_scheduled=true, num_partitions=8\n"
CHIP = replace(CHIPS["h100"], matrix_latency_s=0.0, matrix_efficiency=0.5, half_rate_depths={})
PRICE_S = 3e-3
SLOWER = 0.85 / 0.5
"""The compiler's table has products at 0.85 of the peak."""
US = pytest.approx


def notes(memory_us: float = 0.0, **seconds_us: float) -> str:
    """The backend's configuration with what models note: of all, and of reading and writing alone."""
    entries = ",".join(
        f'{{"end_to_end_cycles":1,"exec_time_us":{us},"compute_time_us":9,"memory_access_time_us":{memory_us},"name":"{name}"}}'
        for name, us in seconds_us.items()
    )
    return f'backend_config={{"operation_queue_id":"0","reification_cost":[{entries}],"device_type":"X"}}'


def of_triton(note: str) -> str:
    """The same of a kernel by Triton."""
    return note.replace('"reification_cost"', '"fusion_backend_config":{"kind":"__triton"},"reification_cost"')


def judged(text: str, price_s: float = PRICE_S, chip: Chip = CHIP) -> ScheduleEstimate:
    def price(collective: CompiledCollective) -> float:
        return price_s

    return estimate_gpu_seconds(HEAD + text, num_devices=8, chip=chip, collective_seconds=price)


def product(left: str, right: str, result: str, note: str) -> str:
    """A kernel that multiplies 1024 x 1024 matrices: 2.1e9 operations."""
    return f"""
%fused (p.0: {left}[1024,1024], p.1: {right}[1024,1024]) -> {result}[1024,1024] {{
  %p.0 = {left}[1024,1024]{{1,0}} parameter(0)
  %p.1 = {right}[1024,1024]{{1,0}} parameter(1)
  ROOT %dot.0 = {result}[1024,1024]{{1,0}} dot(%p.0, %p.1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}

ENTRY %main (a: {left}[1024,1024], b: {right}[1024,1024]) -> {result}[1024,1024] {{
  %a = {left}[1024,1024]{{1,0}} parameter(0)
  %b = {right}[1024,1024]{{1,0}} parameter(1)
  ROOT %gemm = {result}[1024,1024]{{1,0}} fusion(%a, %b), kind=kCustom, calls=%fused, {note}
}}
"""


@pytest.mark.parametrize(
    ("types", "sol_us", "seconds"),
    [
        (("bf16", "bf16", "bf16"), 20.0, SLOWER * 20e-6),
        (("f32", "f32", "f32"), 20.0, SLOWER * 20e-6),
        # not measured together: every dim was counted in bytes of the result
        (("bf16", "bf16", "f32"), 640.0, SLOWER * 10e-6),
        (("f32", "f32", "bf16"), 80.0, SLOWER * 10e-6),
        # never less than the roofline
        (("bf16", "bf16", "bf16"), 1.0, 2 * 1024**3 / 989e12),
    ],
)
def test_products_take_what_was_measured_at_the_efficiency_of_the_chip(
    types: tuple[str, str, str], sol_us: float, seconds: float
) -> None:
    found = judged(product(*types, notes(**{"": 1e9, "indexing-cost-model": 7e3, "sol": sol_us})))
    assert found.seconds == US(seconds)
    assert (found.from_cycles, found.exposed_collective_seconds) == (1.0, 0.0)


def test_products_of_which_nothing_is_noted_take_a_roofline() -> None:
    found = judged(product("bf16", "bf16", "bf16", 'backend_config={"operation_queue_id":"0"}'))
    assert found.seconds == US(2 * 1024**3 / (0.5 * 989e12))
    assert found.from_cycles == 0.0


def test_products_that_contract_over_little_take_longer_for_what_they_do() -> None:
    text = product("bf16", "bf16", "bf16", 'backend_config={"operation_queue_id":"0"}')
    found = judged(text, chip=replace(CHIP, half_rate_depths={"bfloat16": 1024.0}))
    assert found.seconds == US(2 * 2 * 1024**3 / (0.5 * 989e12))


def test_products_of_a_library_are_read_from_their_configuration() -> None:
    dims = '"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}'
    called = f'custom_call_target="__cublas$gemm", backend_config={{"gemm_backend_config":{{{dims}}}}}'
    found = judged(f"""
ENTRY %main (a: bf16[1024,1024], b: bf16[1024,1024]) -> bf16[1024,1024] {{
  %a = bf16[1024,1024]{{1,0}} parameter(0)
  %b = bf16[1024,1024]{{1,0}} parameter(1)
  %gemm = (bf16[1024,1024]{{1,0}}, s8[4096]{{0}}) custom-call(%a, %b), {called}
  ROOT %out = bf16[1024,1024]{{1,0}} get-tuple-element(%gemm), index=0
}}
""")
    assert found.seconds == US(2 * 1024**3 / (0.5 * 989e12))


@pytest.mark.parametrize(("way", "products"), [("", 2), ("Backward", 5)])
@pytest.mark.parametrize(("mask", "share"), [("NO_MASK", 1.0), ("CAUSAL", 0.5)])
def test_attention_of_a_library_takes_the_scores_of_its_configuration(
    way: str, products: int, mask: str, share: float
) -> None:
    scores = '"intermediate_tensor_shape": {"element_type": "BF16", "dimensions": ["2", "8", "1024", "1024"]}'
    config = f'{{"cudnn_fmha_backend_config": {{{scores}, "mask_type": "{mask}"}}}}'
    called = f'custom_call_target="__cudnn$fmhaSoftmax{way}", backend_config={config}'
    found = judged(f"""
ENTRY %main (q: bf16[2,1024,8,128], k: bf16[2,1024,2,128]) -> bf16[2,8,1024,128] {{
  %q = bf16[2,1024,8,128]{{3,2,1,0}} parameter(0)
  %k = bf16[2,1024,2,128]{{3,2,1,0}} parameter(1)
  %mixed = (bf16[2,8,1024,128]{{3,1,2,0}}, u8[0]{{0}}) custom-call(%q, %k, %k), {called}
  ROOT %out = bf16[2,8,1024,128]{{3,1,2,0}} get-tuple-element(%mixed), index=0
}}
""")
    assert found.seconds == US(share * products * 2 * 2 * 8 * 1024**2 * 128 / (0.5 * 989e12))


def kernel(note: str, body: str = "ROOT %e = f32[1048576]{0} exponential(%p)", result: str = "f32[1048576]{0}") -> str:
    return f"""
%fused (p: f32[1048576]) -> {result} {{
  %p = f32[1048576]{{0}} parameter(0)
  {body}
}}

ENTRY %main (a: f32[1048576]) -> {result} {{
  %a = f32[1048576]{{0}} parameter(0)
  ROOT %k = {result} fusion(%a), kind=kLoop, calls=%fused, {note}
}}
"""


LEAST = 8 * 2**20 / CHIP.hbm_bytes_per_s


@pytest.mark.parametrize("note", [notes(**{"": 50.0, "sol": 50.0}), 'backend_config={"reification_cost":[]}'])
def test_other_kernels_take_their_bytes_whatever_computing_is_noted(note: str) -> None:
    assert judged(kernel(note)).seconds == US(LEAST)
    assert judged(kernel(note)).from_cycles == 0.0


def test_a_kernel_with_one_result_takes_the_accesses_that_are_noted() -> None:
    found = judged(kernel(notes(memory_us=20.0, **{"": 50.0, "sol": 50.0})))
    assert (found.seconds, found.from_cycles) == (US(20e-6), 1.0)
    # of Triton's kernels one model is right, and the one without a name is not
    assert judged(kernel(of_triton(notes(memory_us=20.0, **{"": 1e9})))).seconds == US(LEAST)
    assert judged(kernel(of_triton(notes(memory_us=30.0, **{"indexing-cost-model": 40.0})))).seconds == US(30e-6)


def test_of_a_kernel_with_several_results_no_access_counts_twice() -> None:
    body = """%e = f32[1048576]{0} exponential(%p)
  ROOT %t = (f32[1048576]{0}, f32[1048576]{0}) tuple(%e, %p)"""
    found = judged(kernel(notes(memory_us=50.0, **{"": 50.0}), body, "(f32[1048576]{0}, f32[1048576]{0})"))
    assert found.seconds == US(1.5 * LEAST)


def test_an_update_in_place_takes_its_part_only() -> None:
    found = judged(f"""
%fused (p: f32[64,1048576], u: f32[1,1048576], i: s32[]) -> f32[64,1048576] {{
  %p = f32[64,1048576]{{1,0}} parameter(0)
  %u = f32[1,1048576]{{1,0}} parameter(1)
  %i = s32[] parameter(2)
  %z = s32[] constant(0)
  ROOT %d = f32[64,1048576]{{1,0}} dynamic-update-slice(%p, %u, %i, %z)
}}

ENTRY %main (a: f32[64,1048576], b: f32[1,1048576], i: s32[]) -> f32[64,1048576] {{
  %a = f32[64,1048576]{{1,0}} parameter(0)
  %b = f32[1,1048576]{{1,0}} parameter(1)
  %i = s32[] parameter(2)
  ROOT %k = f32[64,1048576]{{1,0}} fusion(%a, %b, %i), kind=kLoop, calls=%fused, {notes(memory_us=160.0, **{"": 160.0})}
}}
""")
    assert found.seconds == US(8 * 2**20 / CHIP.hbm_bytes_per_s, rel=1e-3)


def test_a_scatter_takes_the_rows_that_it_writes() -> None:
    dims = "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"
    found = judged(f"""
%add (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}}

%fused (p: f32[1048576,64], i: s32[4096,1], u: f32[4096,64]) -> f32[1048576,64] {{
  %p = f32[1048576,64]{{1,0}} parameter(0)
  %i = s32[4096,1]{{1,0}} parameter(1)
  %u = f32[4096,64]{{1,0}} parameter(2)
  ROOT %d = f32[1048576,64]{{1,0}} scatter(%p, %i, %u), {dims}, to_apply=%add
}}

ENTRY %main (a: f32[1048576,64], b: s32[4096,1], c: f32[4096,64]) -> f32[1048576,64] {{
  %a = f32[1048576,64]{{1,0}} parameter(0)
  %b = s32[4096,1]{{1,0}} parameter(1)
  %c = f32[4096,64]{{1,0}} parameter(2)
  ROOT %k = f32[1048576,64]{{1,0}} fusion(%a, %b, %c), kind=kInput, calls=%fused, {notes(memory_us=160.0, **{"": 160.0})}
}}
""")
    assert found.seconds < 4 * 4096 * 64 * 4 / CHIP.hbm_bytes_per_s + CHIP.kernel_latency_s


def test_what_is_sliced_from_an_update_is_written_however_large_the_stack() -> None:
    found = judged("""
%fused (p: f32[64,1048576], u: f32[1,1048576], i: s32[]) -> f32[1,1048576] {
  %p = f32[64,1048576]{1,0} parameter(0)
  %u = f32[1,1048576]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %z = s32[] constant(0)
  %d = f32[64,1048576]{1,0} dynamic-update-slice(%p, %u, %i, %z)
  ROOT %s = f32[1,1048576]{1,0} dynamic-slice(%d, %i, %z), dynamic_slice_sizes={1,1048576}
}

ENTRY %main (a: f32[64,1048576], b: f32[1,1048576], i: s32[]) -> f32[1,1048576] {
  %a = f32[64,1048576]{1,0} parameter(0)
  %b = f32[1,1048576]{1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %k = f32[1,1048576]{1,0} fusion(%a, %b, %i), kind=kLoop, calls=%fused
}
""")
    # The update is read and written, and so is the slice.
    assert found.seconds >= 8 * 2**20 / CHIP.hbm_bytes_per_s


REDUCED = "channel_id=1, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=%add"


def collectives(note: str, between: str = "") -> str:
    return f"""
%add (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}}

%fused (p: f32[1048576]) -> f32[1048576] {{
  %p = f32[1048576]{{0}} parameter(0)
  ROOT %e = f32[1048576]{{0}} exponential(%p)
}}

ENTRY %main (a: f32[1048576], b: f32[1048576]) -> f32[1048576] {{
  %a = f32[1048576]{{0}} parameter(0)
  %b = f32[1048576]{{0}} parameter(1)
  %start = f32[1048576]{{0}} all-reduce-start(%a), {REDUCED}, {note}
  {between}
  ROOT %done = f32[1048576]{{0}} all-reduce-done(%start)
}}
"""


WORK = f"%k = f32[1048576]{{0}} fusion(%b), kind=kLoop, calls=%fused, {notes(memory_us=400.0, **{'': 400.0})}"


def test_what_stands_between_start_and_done_hides_a_collective() -> None:
    alone = judged(collectives(""), 1e-3)
    assert (alone.seconds, alone.exposed_collective_seconds) == (US(1e-3), US(1e-3))
    beside = judged(collectives("", WORK), 1e-3)
    assert (beside.seconds, beside.compute_seconds) == (US(1e-3), US(4e-4))
    assert (beside.exposed_collective_seconds, beside.collective_seconds) == (US(6e-4), US(1e-3))
    assert judged(collectives("", WORK), 1e-4).seconds == US(4e-4)


@pytest.mark.parametrize("note", ['backend_config={"reification_cost":[]}', notes(sol=1000.0)])
def test_collectives_take_the_price_that_is_given(note: str) -> None:
    assert judged(collectives(note)).seconds == US(PRICE_S)


def test_collectives_pass_one_after_the_other() -> None:
    second = (
        f"%start.2 = f32[1048576]{{0}} all-reduce-start(%b), channel_id=2, replica_groups=[1,8]<=[8], "
        f"use_global_device_ids=true, to_apply=%add, {notes(sol=500.0)}\n"
        "  %done.2 = f32[1048576]{0} all-reduce-done(%start.2)"
    )
    found = judged(collectives("", second), 1e-3)
    assert (found.seconds, found.collective_seconds) == (US(2e-3), US(2e-3))


def test_loops_take_their_trips() -> None:
    text = f"""
%fused (p: f32[1048576]) -> f32[1048576] {{
  %p = f32[1048576]{{0}} parameter(0)
  ROOT %e = f32[1048576]{{0}} exponential(%p)
}}

%body (t: (s32[], f32[1048576])) -> (s32[], f32[1048576]) {{
  %t = (s32[], f32[1048576]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %v = f32[1048576]{{0}} get-tuple-element(%t), index=1
  %k = f32[1048576]{{0}} fusion(%v), kind=kLoop, calls=%fused, {notes(memory_us=10.0, **{"": 10.0})}
  ROOT %r = (s32[], f32[1048576]{{0}}) tuple(%i, %k)
}}

%cond (t: (s32[], f32[1048576])) -> pred[] {{
  %t = (s32[], f32[1048576]{{0}}) parameter(0)
  ROOT %p = pred[] constant(true)
}}

ENTRY %main (a: (s32[], f32[1048576])) -> (s32[], f32[1048576]) {{
  %a = (s32[], f32[1048576]{{0}}) parameter(0)
  ROOT %w = (s32[], f32[1048576]{{0}}) while(%a), condition=%cond, body=%body KNOWN
}}
"""
    known = judged(text.replace("KNOWN", ', backend_config={"known_trip_count":{"n":"7"}}'))
    assert (known.seconds, known.unknown_loops) == (US(70e-6), 0)
    unknown = judged(text.replace(" KNOWN", ""))
    assert (unknown.seconds, unknown.unknown_loops) == (US(10e-6), 1)


def test_text_without_a_schedule_is_refused() -> None:
    with pytest.raises(ArgumentError, match="is_scheduled"):
        estimate_gpu_seconds("HloModule m\n", num_devices=8, chip=CHIP, collective_seconds=lambda _: 0.0)


COPIED = """
%sliced (p.0: bf16[8,4096,4096]) -> bf16[1,4096,4096] {{
  %p.0 = bf16[8,4096,4096]{{2,1,0}} parameter(0)
  ROOT %slice.0 = bf16[1,4096,4096]{{2,1,0}} slice(%p.0), slice={{[0:1], [0:4096], [0:4096]}}
}}

%beside (p.1: bf16[8,4096,4096]) -> bf16[1,4096,4096] {{
  %p.1 = bf16[8,4096,4096]{{2,1,0}} parameter(0)
  ROOT %copied = bf16[1,4096,4096]{{2,1,0}} fusion(%p.1), kind=kLoop, calls=%sliced
}}

ENTRY %main (a: bf16[8,4096,4096], b: bf16[4096,4096]) -> bf16[1,4096,4096] {{
  %a = bf16[8,4096,4096]{{2,1,0}} parameter(0)
  %b = bf16[4096,4096]{{1,0}} parameter(1)
  %start = ((bf16[8,4096,4096]{{2,1,0}}), bf16[1,4096,4096]{{2,1,0}}, u32[]) async-start(%a), calls=%beside
  {beside}
  ROOT %done = bf16[1,4096,4096]{{2,1,0}} async-done(%start)
}}
"""
COPY_S = 2 * 2 * 4096**2 / CHIP.hbm_bytes_per_s


@pytest.mark.parametrize(
    ("beside", "seconds"),
    [("", COPY_S), ("%kernel = bf16[4096,4096]{1,0} negate(%b)", COPY_S)],  # which takes as long
)
def test_a_copy_that_is_started_runs_beside_the_kernels_before_its_end(beside: str, seconds: float) -> None:
    found = judged(COPIED.format(beside=beside))
    assert found.seconds == US(found.compute_seconds) == US(seconds, rel=0.05)
