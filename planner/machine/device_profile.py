"""The measured cost model of this machine's devices, from the profile that `python -m planner calibrate` keeps."""

from __future__ import annotations

from pathlib import Path

from cost_models import CostModel, CostModelError, Measured, Topology, load_profile, profile_path
from planner.errors import ArgumentError

CACHE = ".cache/meshwright"


def default_profile(platform: str, device_kind: str, num_devices: int) -> Path:
    """Where the profile of such devices is kept, under the user's home."""
    return profile_path(Path.home() / CACHE, platform=platform, device_kind=device_kind, num_devices=num_devices)


def measured_model(profile: str | None, topology: Topology, device_kind: str) -> CostModel:
    """The measured model from a profile; without a path, from where calibration writes it. Raises: ArgumentError."""
    default = default_profile(topology.chip.platform, device_kind, topology.num_devices)
    try:
        return Measured(profile=load_profile(Path(profile) if profile is not None else default), topology=topology)
    except (CostModelError, OSError) as error:
        raise ArgumentError(f"Options(cost_model='measured') needs a profile of these devices: {error}") from error
