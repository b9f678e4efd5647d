"""Eight virtual CPU devices for every test and quick compiles, set before jax is imported, and the profiles of Hypothesis.

"ci", the default, draws the same examples every time; "fuzz" (`pytest --hypothesis-profile=fuzz`) others, and as many as
FUZZ_COUNT in the environment says, and keeps what failed in `.hypothesis`.
"""

import functools
import gc
import importlib.metadata
import os
from collections import Counter
from collections.abc import Iterator

import hypothesis
import pytest

# For programs that run once: more than a third of the time of all tests goes into making machine code fast otherwise.
_FLAGS = {
    "--xla_force_host_platform_device_count": "8",
    "--xla_backend_optimization_level": "0",
    "--xla_llvm_disable_expensive_passes": "true",
    "--xla_cpu_parallel_codegen_split_count": "1",
}
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # The older way to make kernels takes a quarter of the time; jaxlib 0.12 has it no more.
    _FLAGS["--xla_cpu_use_fusion_emitters"] = "false"
for _flag, _value in _FLAGS.items():
    if _flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_flag}={_value}".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# libtpu is used as a compiler only: without these it looks for a TPU's metadata server and refuses a second process.
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-16")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")

# Caches hold millions of objects, and to walk over them all again and again takes a twentieth of the time of all tests.
gc.set_threshold(50_000, 20, 100)

_SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=_SLOW
)
hypothesis.settings.register_profile(
    "fuzz",
    deadline=None,
    derandomize=False,
    max_examples=int(os.environ.get("FUZZ_COUNT", "5000")),
    phases=[phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain],  # which runs many more
    print_blob=True,
    suppress_health_check=_SLOW,
)
hypothesis.settings.load_profile("ci")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with samples go first, because they take longest, then those with most tests."""
    tests = Counter(item.path for item in items)
    long = {item.path for item in items if item.get_closest_marker("sample")}
    items.sort(key=lambda item: (item.path not in long, -tests[item.path]))


@pytest.fixture(autouse=True, scope="session")
def no_compiles_unasked() -> Iterator[None]:
    """Compiles for devices that are not here only where a test asks for them: each takes seconds."""
    from planner.planning import checks  # jax may not be imported before the flags above are set

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "AFFORDABLE_OPERATIONS", -1)
        yield


@pytest.fixture(autouse=True, scope="session")
def one_context_of_mlir() -> Iterator[None]:
    """All programs are lowered in one context: JAX makes one for each, which takes 10 ms and keeps 1 MB."""
    from jax._src.interpreters import mlir

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlir, "make_ir_context", functools.cache(mlir.make_ir_context))
        yield
