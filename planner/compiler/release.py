"""The release of the compiler that is installed for a platform."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile
from types import MappingProxyType

from cost_models.hardware import Platform

PACKAGES: Mapping[Platform, tuple[str, ...]] = MappingProxyType(
    {"tpu": ("libtpu",), "gpu": ("jax-cuda12-plugin", "jax-cuda13-plugin"), "cpu": ("jaxlib",)}
)
"""The packages that bring a platform's compiler. The CUDA plugins are released with jaxlib, under its numbers."""


@cache
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


def is_from(installed: str, release: str) -> bool:
    """Whether an installed release is this one by its number, or a later one."""
    return _numbers(installed) >= _numbers(release)


def _numbers(release: str) -> list[int]:
    """The numbers of a release, of "libtpu 0.0.50.dev3" those before "dev3"."""
    return [int(number) for number in takewhile(str.isdigit, release.split()[-1].split("."))]
