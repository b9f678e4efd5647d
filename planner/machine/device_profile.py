"""The measured cost model of this machine's devices, from the profile that `python -m planner calibrate` keeps."""

from __future__ import annotations

from pathlib import Path

from cost_models import CostModelError, Measured, Topology, load_profile, profile_path, shipped_profile
from planner.errors import ArgumentError

CACHE = ".cache/meshwright"


def default_profile(platform: str, device_kind: str, num_devices: int) -> Path:
    """Where the profile of such devices is kept, under the user's home."""
    return profile_path(Path.home() / CACHE, platform=platform, device_kind=device_kind, num_devices=num_devices)


def measured_model(profile: str | None, topology: Topology, device_kind: str) -> Measured:
    """The measured model from a profile.

    Without a path, that which calibration wrote, and where there is none, that which comes with the package for the chip.
    Raises: ArgumentError.
    """
    default = default_profile(topology.chip.platform, device_kind, topology.num_devices)
    shipped = None if profile is not None or default.is_file() else shipped_profile(topology.chip.name)
    try:
        found = shipped or load_profile(Path(profile) if profile is not None else default)
        return Measured(profile=found, topology=topology)
    except (CostModelError, OSError) as error:
        raise ArgumentError(f"Options(cost_model='measured') needs a profile of these devices: {error}") from error
