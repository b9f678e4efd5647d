"""What plans say of a compiler that is not the one off which the compiler model was read."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from planner.compiler.model import CompilerModel, PassName
from planner.compiler.release import installed_release, is_read_off

PROBED: Mapping[str, frozenset[PassName]] = MappingProxyType(
    {
        "libtpu 0.0.50": frozenset({"real-transforms", "async-all-gather"}),
        "jax-cuda12-plugin 0.12.0": frozenset(),
        "jax-cuda13-plugin 0.12.0": frozenset(),
        "jaxlib 0.12.0": frozenset({"dot-operand-fusion", "buffer-assignment", "all-reduce-reassociate"}),
    }
)
"""Newer releases for which all probes were compiled, and the passes of which one came out otherwise than modelled.

`benchmarks/results/probes_newest_jax.json` has all outcomes. The two CUDA plugins bring one compiler; the first was asked.
"""


def release_notes(compiler: CompilerModel) -> tuple[str, ...]:
    """A sentence where the installed release is not the one that passes were read off, and does not all they say."""
    installed = installed_release(compiler.platform)
    if installed is None:
        return ()
    others = [one for one in compiler.passes if not is_read_off(installed, compiler.releases_of(one))]
    if not others:
        return ()
    package = installed.split()[0]
    probed = next((PROBED[one] for one in PROBED if one.split()[0] == package and is_read_off(installed, (one,))), None)
    if probed is not None:
        names = [one.name for one in others if one.name in probed]
        text = (
            f"{len(names)} of {len(compiler.passes)} passes of the compiler model are not what {installed} does "
            f"({', '.join(names)}): predictions may be off by them"
        )
        return (text,) if names else ()
    releases = ", ".join(dict.fromkeys(release for one in others for release in compiler.releases_of(one)))
    return (
        f"{len(others)} of {len(compiler.passes)} passes of the compiler model were read off {releases}, and the compiler "
        f"here is {installed}: predictions may be off where it has changed",
    )
