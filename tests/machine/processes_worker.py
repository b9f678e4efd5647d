"""One of several processes that plan together; `test_processes` starts them, and reads what each found.

    python -m tests.machine.processes_worker GROUP RANK PROCESSES PORT FOLDER

Every case of a group is run in turn by all processes; what it returns, or raises, is written to FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import planner
from planner.machine import processes
from planner.verify import verification
from planner.verify.numerics import Numerics
from tests.small import mlp, mlp_args, train_args, train_step

X = np.linspace(-1.0, 1.0, 64 * 64, dtype=np.float32).reshape(64, 64)
STEPS = 3


def one(x: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ x).sum()


def other(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ x).sum()


def told(p: planner.Plan, folder: Path) -> dict[str, Any]:
    """What is compared of a plan: what it would save, its devices, checks and notes."""
    path = folder / f"{jax.process_index()}-{time.monotonic_ns()}.json"
    p.save(path)
    mesh: Any = p.mesh
    return {
        "saved": path.read_text(),
        "mesh": dict(p.decision.mesh_shape),
        "devices": [device.id for device in mesh.devices.flat],
        "checked": {check.what: [check.ok, check.detail] for check in p.checked},
        "notes": list(p.notes),
    }


def verdict(p: planner.Plan, *args: Any) -> dict[str, Any]:
    found = p.verify(*args)
    return {"ok": found.ok, "words": str(found)}


def default_options(rank: int, folder: Path) -> Any:
    args = mlp_args()
    p = planner.plan(mlp, args)
    return {**told(p, folder), "verified": verdict(p, *args), "by_shapes": verdict(p)}


def front(rank: int, folder: Path) -> Any:
    found = planner.pareto(train_step, train_args(), points=3, mesh={"x": 4}, donate_argnums=0)
    return {"plans": [told(p, folder) for p in found], "notes": list(found.notes), "text": str(found)}


def different_programs(rank: int, folder: Path) -> Any:
    return told(planner.plan(other if rank else one, (X,)), folder)


def different_limits(rank: int, folder: Path) -> Any:
    return told(planner.plan(one, (X,), memory_limit=1e9 + rank), folder)


def error_on_one(rank: int, folder: Path) -> Any:
    def fails(x: jax.Array) -> jax.Array:
        if rank == 1:
            raise ValueError("no such file")
        return x.sum()

    return told(planner.plan(fails, (X,)), folder)


def nothing_fits(rank: int, folder: Path) -> Any:
    return told(planner.plan(one, (X,), memory_limit=1000.0), folder)


def mesh_of_one_process(rank: int, folder: Path) -> Any:
    return told(planner.plan(one, (X,), mesh={"x": jax.local_device_count()}), folder)


def one_plans_alone(rank: int, folder: Path) -> Any:
    if rank == 0:
        return None
    p = planner.plan(one, (X,), devices=jax.local_devices())
    return {**told(p, folder), "verified": verdict(p, X), "value": float(p(X))}


def no_time(rank: int, folder: Path) -> Any:
    return told(planner.plan(mlp, mlp_args(), options=planner.Options(time_limit_s=1e-3, check="never")), folder)


def check_fails_on_one(rank: int, folder: Path) -> Any:
    real, runs = verification.compare_numerics, [0]

    def planted(*args: Any, **more: Any) -> Numerics:
        runs[0] += 1
        found = real(*args, **more)
        return Numerics(ok=False, reason="planted") if rank == 1 and runs[0] == 1 else found

    verification.compare_numerics = planted
    try:
        return told(planner.plan(one, (X,)), folder)
    finally:
        verification.compare_numerics = real


def compiles_on_all_but_one(rank: int, folder: Path) -> Any:
    real, runs = verification.read_collectives, [0]

    def planted(*args: Any, **more: Any) -> Any:
        runs[0] += 1
        if rank == 1 and runs[0] == 1:
            raise RuntimeError("planted")
        return real(*args, **more)

    verification.read_collectives = planted
    try:
        return told(planner.plan(one, (X,)), folder)
    finally:
        verification.read_collectives = real


def arguments_differ(rank: int, folder: Path) -> Any:
    return told(planner.plan(one, (X * (rank + 1),)), folder)


def shapes_on_one(rank: int, folder: Path) -> Any:
    return told(planner.plan(one, (X if rank else jax.ShapeDtypeStruct(X.shape, X.dtype),)), folder)


def train(rank: int, folder: Path) -> Any:
    state, x = train_args()
    p = planner.plan(train_step, (state, x), donate_argnums=0)
    losses: list[float] = []
    for _ in range(STEPS):
        state, loss = p(state, x)
        losses.append(float(loss))
    path = folder / f"trained-{rank}.json"
    p.save(path)
    bound = planner.load(path).bind(train_step)
    return {**told(p, folder), "losses": losses, "next": verdict(p, state, x), "bound": verdict(bound, *train_args())}


def global_arrays(rank: int, folder: Path) -> Any:
    mesh = Mesh(np.array(jax.devices()).reshape(2, -1), ("process", "device"))
    mine = X[32 * rank : 32 * (rank + 1)]
    x = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("process", "device")), mine)
    p = planner.plan(one, (x,))
    return {**told(p, folder), "values": [float(p(x)), float(p(X))], "verified": verdict(p, x)}


def keys_and_constants(rank: int, folder: Path) -> Any:
    table = jnp.arange(128.0 * 256).reshape(128, 256)

    def draw(key: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return jax.random.split(key)[0], counts + 1, jax.random.normal(key, (64, 128)) @ table

    key, counts = jax.random.key(1), np.arange(8)
    p = planner.plan(draw, (key, counts))
    for _ in range(2):
        key, counts, _ = p(key, counts)
    return {
        **told(p, folder),
        "constants": [leaf.constant for leaf in p.decision.arguments],
        "verified": verdict(p, key, counts),
    }


def nothing_to_split(rank: int, folder: Path) -> Any:
    x = np.ones(3, np.float32)
    p = planner.plan(lambda x: x.sum(), (x,))
    return {**told(p, folder), "value": float(p(x))}


def ordered_effects(rank: int, folder: Path) -> Any:
    def prints(x: jax.Array) -> jax.Array:
        jax.debug.print("{}", x.sum(), ordered=True)
        return x.sum()

    return told(planner.plan(prints, (X,)), folder)


def devices_of_each(rank: int, folder: Path) -> Any:
    firsts = {device.process_index: device for device in reversed(jax.devices())}
    return told(planner.plan(one, (X,), devices=[firsts[process] for process in sorted(firsts)]), folder)


def devices_of_others(rank: int, folder: Path) -> Any:
    theirs = [device for device in jax.devices() if device.process_index == 0]
    return told(planner.plan(one, (X,), devices=theirs), folder)


def verified_by_one(rank: int, folder: Path) -> Any:
    """One comes to `verify` after the other has given up; both then do so again."""
    p = planner.plan(one, (X,), options=planner.Options(check="never"))
    whole, processes.ARRIVAL_S = processes.ARRIVAL_S, 1.0
    try:
        if rank == 1:
            time.sleep(3.0)
        words = verdict(p, X)
    except planner.errors.ProcessError as error:
        words = {"raised": str(error)}
    finally:
        processes.ARRIVAL_S = whole
    return {"first": words, "second": verdict(p, X)}


BATCH = np.linspace(-1.0, 1.0, 32 * 64, dtype=np.float32).reshape(32, 64)


def rows_of(rank: int) -> np.ndarray[Any, Any]:
    """The part of the batch that a process brings."""
    return BATCH.reshape(jax.process_count(), -1, 64)[rank]


def parts_of_a_batch(rank: int, folder: Path) -> Any:
    state, _ = train_args()
    mine = rows_of(rank)
    p = planner.plan(train_step, (state, mine), donate_argnums=0, process_local=("x",))
    path = folder / f"parts-{rank}.json"
    p.save(path)
    bound = planner.load(path).bind(train_step, (state, mine))
    placed = p.place(state, mine)[1]
    held = {shard.index[0].indices(len(BATCH))[:2] for shard in placed.addressable_shards}
    losses: list[float] = []
    for _ in range(STEPS):
        state, loss = p(state, mine)
        losses.append(float(loss))
    return {
        **told(p, folder),
        "losses": losses,
        "held": sum(stop - start for start, stop in held),
        "same": all(np.isin(np.asarray(shard.data), mine).all() for shard in placed.addressable_shards),
        "next": verdict(p, state, mine),
        "bound": float(bound(train_args()[0], mine)[1]),
    }


def parts_of_other_shapes(rank: int, folder: Path) -> Any:
    state, _ = train_args()
    mine = rows_of(rank)
    p = planner.plan(train_step, (state, jax.ShapeDtypeStruct(mine.shape, mine.dtype)), process_local={"x": 0})
    words: list[str] = []
    for wrong in (BATCH, mine[:-1], mine.astype(np.int32)):
        try:
            p(state, wrong)
        except planner.errors.ArgumentError as error:
            words.append(str(error))
    return {"words": words, "loss": float(p(state, mine)[1]), "again": float(p(state, mine)[1])}


def parts_across_processes_that_do_not_divide(rank: int, folder: Path) -> Any:
    mesh = {"a": jax.device_count()}
    return told(planner.plan(lambda x: x.sum(), (X[:3],), mesh=mesh, process_local=("x",)), folder)


def parts_and_a_pin_against_them(rank: int, folder: Path) -> Any:
    mesh = {"a": jax.device_count()}
    pins = {"x": PartitionSpec()}
    return told(planner.plan(lambda x: x.sum(), (X[:8],), mesh=mesh, process_local=("x",), pins=pins), folder)


def parts_on_a_mesh_in_another_order(rank: int, folder: Path) -> Any:
    """The devices of one process are not neighbours: its part lies where its devices are, whole again over all."""
    devices = np.array(jax.devices()).reshape(jax.process_count(), -1)
    mesh = Mesh(devices.T, ("model", "data"))
    mine = rows_of(rank)
    p = planner.plan(
        lambda x: x * 2.0, (mine,), mesh=mesh, process_local=("x",), pins={"x": PartitionSpec(("model", "data"))}
    )
    (placed,) = p.place(mine)
    shards = sorted(placed.addressable_shards, key=lambda shard: shard.index[0].start)
    return {
        "starts": [shard.index[0].start for shard in shards],
        "same": np.array_equal(np.concatenate([np.asarray(shard.data) for shard in shards]), mine),
        "sum": float(placed.sum()),
    }


def shared_by_processes(rank: int, folder: Path) -> Any:
    state, _ = train_args()
    mine = rows_of(rank)
    plans, kept = (
        planner.plan_many(
            {
                "train": (train_step, (state, mine), {"process_local": ("x",)}),
                "infer": (mlp, (state["params"], mine), {"process_local": ("x",)}),
            },
            mesh={"data": jax.process_count(), "model": jax.local_device_count()},
            pins={"params": {"w0": PartitionSpec(None, "model"), "w1": None, "b0": None}},
            options=planner.Options(cache=str(folder / "kept")),
        )
        for _ in range(2)
    )
    stepped, loss = kept["train"](state, mine)
    made = kept["infer"].jit(stepped["params"], plans["infer"].place(state["params"], mine)[1])
    return {
        **told(plans["train"], folder),
        "loss": float(loss),
        "shape": made.shape,
        "text": str(plans["infer"].in_specs),
        "kept": [str(kept[name].in_specs) == str(plan.in_specs) for name, plan in plans.items()],
        "entries": len(list((folder / "kept").glob("*.plans.json"))),
        "pinned": str(kept["train"].in_specs[0]["params"]["w0"]),
    }


GROUPS: dict[str, tuple[Callable[[int, Path], Any], ...]] = {
    "quick": (
        different_programs,
        different_limits,
        error_on_one,
        nothing_fits,
        mesh_of_one_process,
        default_options,
        no_time,
        front,
    ),
    "long": (
        one_plans_alone,
        check_fails_on_one,
        compiles_on_all_but_one,
        arguments_differ,
        shapes_on_one,
        train,
        global_arrays,
        keys_and_constants,
        nothing_to_split,
        ordered_effects,
        devices_of_each,
        devices_of_others,
        verified_by_one,
    ),
    "four": (default_options, mesh_of_one_process),
    "parts": (
        parts_of_a_batch,
        parts_of_other_shapes,
        parts_across_processes_that_do_not_divide,
        parts_and_a_pin_against_them,
        parts_on_a_mesh_in_another_order,
        shared_by_processes,
    ),
}


def main(group: str, rank: int, processes: int, port: int, folder: Path) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, rank)
    found: dict[str, Any] = {}
    for case in GROUPS[group]:
        try:
            found[case.__name__] = case(rank, folder)
        except planner.errors.PlannerError as error:
            least = getattr(error, "least_bytes", None)
            found[case.__name__] = {"error": type(error).__name__, "message": str(error), "least_bytes": least}
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    name, *numbers, where = sys.argv[1:]
    main(name, *map(int, numbers), Path(where))
