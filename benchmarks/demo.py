"""Does it really work? Plans a train step and runs it sharded beside the single device; plans Llama-3-8B for 256 chips.

Part one, on eight virtual CPU devices: a GPT of Flax and Optax (scan over layers, remat, AdamW, bf16 activations) is
planned, trained for a few steps twice, sharded and on one device, and verified. Part two, in a process of its own so
that its memory can be told, plans the train step of Llama-3-8B for `v5e:16x16` from shapes alone, writes the plan and
takes it back. `demo.py train` and `demo.py llama` do one part. Exit code 1 if anything is not as it should be.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

DEVICES = 8
# jax reads both when it is first imported. A plan for TPUs needs none here, and looking for some takes time.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}".strip()
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402  (after the flags)
import numpy as np  # noqa: E402

import planner  # noqa: E402
from benchmarks.models import gpt, llama  # noqa: E402
from planner.cli.progress import show_progress  # noqa: E402

GPT = gpt.GPTConfig(width=128, layers=4, heads=8, vocabulary=512, sequence=64)
GPT_BATCH = 16
STEPS = 6
LOSS_TOLERANCE = 5e-3
"""Of two losses after a step, relative: a rounding of bf16, which keeps 8 bits, is 2**-8 = 0.4 %."""

TOPOLOGY = "v5e:16x16"
LLAMA = replace(llama.CONFIGS["8B"], query_block=512)
"""512 queries attend at a time: the scores of all 8,192 at once would not fit a chip."""
LLAMA_BATCH = 256


def main() -> int:
    """The exit code."""
    parts = {"train": train, "llama": plan_llama}
    chosen = sys.argv[1:]
    if not all(name in parts for name in chosen):
        print(f"the parts are {', '.join(parts)}; got {' '.join(chosen)}", file=sys.stderr)
        return 2
    if chosen:
        return 0 if all(parts[name]() for name in chosen) else 1
    codes = [subprocess.run([sys.executable, __file__, name], check=False).returncode for name in parts]
    return max(codes, key=abs)


def train() -> bool:
    """Whether the sharded training does what that on one device does."""
    print(f"Part one: a GPT train step on {len(jax.devices())} virtual CPU devices\n")
    model = gpt.gpt(GPT, batch=GPT_BATCH)
    # The step reuses the memory of the state it is given; what lies on the host is nobody's to reuse.
    model = replace(model, args=jax.device_get(model.args))
    params, opt_state, batch = model.args
    made = _plan(model)
    print(made)

    single = jax.jit(model.fn)
    states = {"sharded": (params, opt_state), "single": (params, opt_state)}
    rng = np.random.default_rng(0)
    # Some tokens are far more frequent than others: that is learnt in a few steps, and holds for batches not yet seen.
    weights = rng.dirichlet(np.full(GPT.vocabulary, 0.05))
    agree, losses = True, list[float]()
    print(f"\n{STEPS} steps from the same start on the same batches\n\n  step  sharded   single    difference")
    for step in range(STEPS):
        ids = rng.choice(GPT.vocabulary, size=batch.shape, p=weights).astype(batch.dtype)
        *states["sharded"], sharded_loss = made(*states["sharded"], ids)
        *states["single"], single_loss = single(*states["single"], ids)
        sharded_loss, single_loss = float(sharded_loss), float(single_loss)
        difference = abs(sharded_loss - single_loss) / abs(single_loss)
        agree &= difference <= LOSS_TOLERANCE
        losses.append(sharded_loss)
        print(f"  {step:>4}  {sharded_loss:<8.5f}  {single_loss:<8.5f}  {difference:.1e}")
    falling = losses[-1] < losses[0]
    print(f"\n  {_word(falling)}: the loss falls")
    print(f"  {_word(agree)}: sharded and single-device losses agree within {LOSS_TOLERANCE:.0e}")

    verification = made.verify(*model.args)
    print(f"\nplan.verify(...): {_word(verification.ok)}\n{verification}")
    return falling and agree and verification.ok


def plan_llama() -> bool:
    """Whether Llama-3-8B is planned, and taken back from a file."""
    model = llama.llama(LLAMA, batch=LLAMA_BATCH, size="real", name="llama_8B")
    print(f"\n{'=' * 118}\n\nPart two: a train step of Llama-3-8B for {TOPOLOGY}, from shapes alone")
    print(f"({model.notes}, {LLAMA_BATCH} sequences a step)\n")
    started = time.perf_counter()
    made = _plan(model, topology=TOPOLOGY)
    seconds = time.perf_counter() - started
    print(made)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(f"\nplanned in {seconds:.1f} s, with {peak / 1e9:.2f} GB of memory at most")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        made.save(path)
        size = path.stat().st_size
        bound = planner.load(path).bind(model.fn, model.args)
    equal = (bound.in_specs, bound.out_specs, bound.constraints) == (made.in_specs, made.out_specs, made.constraints)
    leaves = len(jax.tree.leaves((made.in_specs, made.out_specs)))
    print(
        f"{_word(equal)}: plan.json ({size / 1e3:.0f} kB), loaded and bound without a search, has the same "
        f"{leaves} specs of arguments and results and {len(made.constraints)} of intermediates"
    )
    return equal


def _plan(model: gpt.Model, *, topology: str | None = None) -> planner.Plan:
    with show_progress() as display:
        return planner.plan(
            model.fn,
            model.args,
            topology=topology,
            donate_argnums=model.donate_argnums,
            options=planner.Options(progress=display),
        )


def _word(ok: bool) -> str:
    return "ok" if ok else "FAILED"


if __name__ == "__main__":
    sys.exit(main())
