"""The configuration of ``thalweg run``, defaults and all."""

from __future__ import annotations

import math
from typing import Literal, TypeGuard

import msgspec

from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.forecasting import make_forecaster

MAX_SERVERS = 250
TESTBEDS = ("netns", "docker", "loopback", "sim")

# --- the scenario ``collapse`` (see ``scenario``), emulated seconds

COLLAPSE_AT_S = 300.0  # in the middle of the first of the paper's planning periods (10 minutes, section 4)
COLLAPSE_FACTOR = 0.1
COLLAPSE_FLOOR = 0.05
"""At a mean of 0.2 Mbit/s, 10 kbit/s: an image takes two minutes and a probe 13 s. Much lower, and planners would spend
their period on waiting for probes, which is another experiment."""
COLLAPSE_S = 7200.0
"""Twelve such periods. It ends, because on links that are slow anyway a tree that stays would take a day for a hundred
images; those that a healthy tree delivers in twenty minutes are through before."""


def is_scenario_file(scenario: str | None) -> TypeGuard[str]:
    """Whether ``--scenario`` names a file, and not one of the scenarios that there are."""
    return scenario is not None and (scenario.endswith(".toml") or "/" in scenario)


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One workload on one testbed under one or more placements.

    Rates in bit/s and times in seconds of the emulated network. The sizes of images are those of the paper
    (Ranganathan et al., section 4: Normal, mean 128 KB, 25 %). Options of placements that move operators are None
    where they were not given; their defaults are those of ``middleware.protocol.adaptation``. Of testbed sim alone:
    ``interface`` is how links hinder each other (independent), ``bytes`` real values instead of sizes, ``validate``
    the cores' invariants after each event.
    """

    testbed: str = "netns"
    image: str | None = None  # of testbed docker alone; None: that of `thalweg testbed build`
    kernel: Literal["host", "uml"] = "host"  # of testbed netns
    interface: Literal["single", "independent"] | None = None  # of testbed sim
    bytes: bool = False
    validate: bool = False
    servers: int = 8
    placements: tuple[str, ...] = ("download-all", "one-shot", "thalweg")
    images: int = 60
    tree: str = "binary"
    rule: str = "max"
    seed: int = 1
    traces: str | None = None
    link_mean_bps: float | None = None
    time_scale: float = 1.0
    view: Literal["probe", "truth"] = "probe"
    cost: str = "expected-period"
    period_s: float | None = None
    k: int | None = None
    gate: bool | None = None
    hysteresis: float | None = None
    moves: int | None = None
    reshapes: int | None = None
    forecaster: str | None = None
    scenario: str | None = None  # collapse, or a scenario file
    no_delay: bool = False  # of a scenario file: its rates and cuts alone
    operator: str = "composite"
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
        if self.testbed not in TESTBEDS:
            raise UsageError(f"unknown --testbed {self.testbed!r}; there are {', '.join(TESTBEDS)}")
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
        if self.image is not None and self.testbed != "docker":
            raise UsageError(f"--image goes with --testbed docker, and this run is on {self.testbed}")
        if self.kernel == "uml" and self.testbed != "netns":
            raise UsageError(f"--kernel uml goes with --testbed netns, and this run is on {self.testbed}")
        if self.testbed != "sim":
            for flag, given in (
                ("--interface", self.interface is not None),
                ("--bytes", self.bytes),
                ("--validate", self.validate),
            ):
                if given:
                    raise UsageError(f"{flag} goes with --testbed sim, and this run is on {self.testbed}")
        if self.testbed == "loopback" and self.view == "truth":
            raise UsageError("--view truth asks an emulator, and loopback is none; use --testbed netns")
        described = is_scenario_file(self.scenario)
        if self.scenario not in (None, "collapse") and not described:
            raise UsageError(f"unknown --scenario {self.scenario!r}; there is collapse, or a file that ends in .toml")
        if self.no_delay and not described:
            raise UsageError("--no-delay leaves out a scenario file's delays, and no such file is given")
        if described and self.testbed not in ("netns", "docker"):
            raise UsageError(f"a scenario file shapes real links; give it with --testbed netns, not {self.testbed}")
        if self.testbed == "loopback" and self.scenario is not None:
            raise UsageError(f"--scenario {self.scenario} changes links, and loopback has none; use --testbed netns")
        if self.forecaster is not None:
            make_forecaster(self.forecaster)
        if self.image_bytes < 1024 or self.image_bytes > 64 * 1024 * 1024:
            raise UsageError(f"--image-bytes is {self.image_bytes}; it must be from 1024 to 67108864")
        if self.pictures < 0:
            raise UsageError(f"--pictures is {self.pictures}; it must be at least 0")
        return self
