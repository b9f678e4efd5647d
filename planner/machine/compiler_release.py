"""The release of the compiler that is installed for a platform, beside those off which the compiler model was read."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType

from cost_models.hardware import Platform
from planner.compiler.model import CompilerModel

PACKAGES: Mapping[Platform, tuple[str, ...]] = MappingProxyType(
    {"tpu": ("libtpu",), "gpu": ("jax-cuda12-plugin", "jax-cuda13-plugin"), "cpu": ("jaxlib",)}
)
"""The packages that bring a platform's compiler. The CUDA plugins are released with jaxlib, under its numbers."""


def installed_release(platform: Platform) -> str | None:
    """The package and the release of the compiler that is installed for a platform; None where none is."""
    for package in PACKAGES[platform]:
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
    return None


def is_read_off(installed: str, releases: tuple[str, ...]) -> bool:
    """Whether an installed release is one of these by its number, or a patch of one, as libtpu 0.0.42.1 is of 0.0.42."""
    numbers = installed.split()[-1].split(".")
    named = [release.split()[-1].split(".") for release in releases]
    return any(numbers[: len(one)] == one for one in named)


def release_notes(compiler: CompilerModel) -> tuple[str, ...]:
    """A sentence where passes of a compiler were read off other releases than the one that is installed, else nothing."""
    installed = installed_release(compiler.platform)
    if installed is None:
        return ()
    others = [one for one in compiler.passes if not is_read_off(installed, compiler.releases_of(one))]
    if not others:
        return ()
    releases = ", ".join(dict.fromkeys(release for one in others for release in compiler.releases_of(one)))
    return (
        f"{len(others)} of {len(compiler.passes)} passes of the compiler model were read off {releases}, and the compiler "
        f"here is {installed}: predictions may be off where it has changed",
    )
