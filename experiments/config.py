"""The configuration of ``thalweg run``, defaults and all."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from thalweg.middleware.errors import UsageError

MAX_SERVERS = 250


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One workload on one testbed under one or more placements.

    Rates in bit/s and times in seconds of the emulated network. The sizes of images are those of the paper
    (Ranganathan et al., section 4: Normal, mean 128 KB, 25 %).
    """

    testbed: str = "netns"
    servers: int = 8
    placements: tuple[str, ...] = ("download-all", "one-shot")
    images: int = 60
    tree: str = "binary"
    rule: str = "max"
    seed: int = 1
    traces: str | None = None
    link_mean_bps: float | None = None
    time_scale: float = 1.0
    view: Literal["probe", "truth"] = "probe"
    cost: str = "expected-period"
    startup_s: float = 0.0
    disk_bytes_per_s: float | None = None  # None: reading costs nothing
    pixel_s: float | None = None  # what planners take for composition; None: as the operator measures itself
    image_bytes: int = 131_072
    image_deviation: float = 0.25
    dtype: Literal["uint8", "uint16"] = "uint8"
    bands: int = 1
    folder: str | None = None
    skip_corrupt: bool = False
    allow: tuple[str, ...] = ()
    pictures: int = 12
    prove: bool = True

    def check(self) -> RunConfig:
        """Return self, or raise UsageError naming the option that is out of range."""
        if not 1 <= self.servers <= MAX_SERVERS:
            raise UsageError(f"--servers is {self.servers}; a testbed has addresses for 1 to {MAX_SERVERS} servers")
        if self.images < 1:
            raise UsageError(f"--images is {self.images}; it must be at least 1")
        if not self.placements:
            raise UsageError("no --placement was given; try --placement one-shot")
        for name in self.placements:
            if self.placements.count(name) > 1:
                raise UsageError(f"--placement {name} is given twice; each is run once")
        if not (math.isfinite(self.time_scale) and self.time_scale > 0):
            raise UsageError(f"--time-scale is {self.time_scale}; it must be above 0")
        if self.link_mean_bps is not None and self.testbed == "loopback":
            raise UsageError("--link-mean shapes links, and the loopback testbed has none; use --testbed netns")
        if self.testbed == "loopback" and self.view == "truth":
            raise UsageError("--view truth asks an emulator, and loopback is none; use --testbed netns")
        if self.image_bytes < 1024 or self.image_bytes > 64 * 1024 * 1024:
            raise UsageError(f"--image-bytes is {self.image_bytes}; it must be from 1024 to 67108864")
        if self.pictures < 0:
            raise UsageError(f"--pictures is {self.pictures}; it must be at least 0")
        return self
