"""Profiles: what was measured of the devices of one machine, and its form on disk."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from cost_models.errors import CostModelError

FORMAT = "meshwright profile 1"
SHIPPED = Path(__file__).resolve().parent / "profiles"
"""Profiles of chips, by name, as `python -m planner calibrate --compiler CHIP` writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A straight line through timings: seconds = latency_s + seconds_per_unit * units.

    `residual` is the root mean square of the relative errors of the line at the points it was fitted to.
    """

    latency_s: float
    seconds_per_unit: float
    residual: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulFit:
    """Square matmuls of one dtype with all devices busy; the unit is one floating-point operation per device."""

    dtype: str
    fit: Fit


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFit:
    """A collective over groups of one size, all groups at once; the unit is one byte as in `collectives`."""

    kind: str
    group_size: int
    fit: Fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The measured figures of one machine's devices, and where, when and with what they were measured.

    `matmuls` by dtype; `elementwise` per byte read or written of an elementwise pass; `vector` per floating-point
    operation of float32 work on data in the cache; `collectives` by kind and group size. `topology` is the name of the one
    that was measured, where it has one: collectives over other links are then scaled from those that were measured.
    """

    machine: str
    platform: str
    device_kind: str
    num_devices: int
    jax_version: str
    date: str
    matmuls: tuple[MatmulFit, ...]
    elementwise: Fit
    vector: Fit
    collectives: tuple[CollectiveFit, ...]
    topology: str = ""


def profile_path(cache_dir: Path | str, *, platform: str, device_kind: str, num_devices: int) -> Path:
    """The path of the profile of such devices under a cache directory, by convention."""
    kind = re.sub(r"[^a-z0-9]+", "-", device_kind.lower()).strip("-")
    return Path(cache_dir) / f"profile-{platform}-{kind}-{num_devices}.json"


def shipped_profile(chip: str) -> Profile | None:
    """The profile of a chip that comes with this package, fitted to its compiler's schedules; None where there is none."""
    path = SHIPPED / f"{chip}.json"
    return load_profile(path) if path.is_file() else None


def save_profile(profile: Profile, path: Path | str) -> None:
    """Nothing; writes the profile as JSON, whole or not at all, making the directory where it is missing.

    Raises: CostModelError when the file cannot be written.
    """
    text = json.dumps({"format": FORMAT, **dataclasses.asdict(profile)}, indent=2)
    path = Path(path)
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(text + "\n", encoding="utf-8")
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CostModelError(
            f"cannot write the profile {str(path)!r}: {error}; give a path that can be written"
        ) from error


def load_profile(path: Path | str) -> Profile:
    """The profile in a JSON file.

    Raises: CostModelError when the file is missing, unreadable or not a profile.
    """
    advice = "run `python -m planner calibrate` on the machine to measure one"
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise CostModelError(f"there is no profile at {str(path)!r}; {advice}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise CostModelError(f"cannot read the profile {str(path)!r}: {error}; {advice}") from error
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise CostModelError(f"the profile {str(path)!r} is not JSON: {error}; {advice}") from error
    found: object = cast(dict[str, object], data).get("format") if isinstance(data, dict) else None
    if found != FORMAT:
        raise CostModelError(f"{str(path)!r} has the format {found!r}, not {FORMAT!r}; {advice}")
    try:
        return _profile(cast(Mapping[str, Any], data))
    except (KeyError, TypeError, ValueError) as error:
        raise CostModelError(f"the profile {str(path)!r} lacks or garbles a figure ({error!r}); {advice}") from error


def _profile(data: Mapping[str, Any]) -> Profile:
    return Profile(
        machine=str(data["machine"]),
        platform=str(data["platform"]),
        device_kind=str(data["device_kind"]),
        num_devices=int(data["num_devices"]),
        jax_version=str(data["jax_version"]),
        date=str(data["date"]),
        matmuls=tuple(MatmulFit(dtype=str(row["dtype"]), fit=_fit(row["fit"])) for row in data["matmuls"]),
        elementwise=_fit(data["elementwise"]),
        vector=_fit(data["vector"]),
        collectives=tuple(
            CollectiveFit(kind=str(row["kind"]), group_size=int(row["group_size"]), fit=_fit(row["fit"]))
            for row in data["collectives"]
        ),
        topology=str(data.get("topology", "")),
    )


def _fit(row: Mapping[str, Any]) -> Fit:
    return Fit(
        latency_s=float(row["latency_s"]),
        seconds_per_unit=float(row["seconds_per_unit"]),
        residual=float(row["residual"]),
    )
