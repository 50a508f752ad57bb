"""Generated bandwidth traces with the statistics published for the Internet of 1998.

The log of a link's rate is the sum of a level drawn from its class, big jumps, small jumps and jitter. The source is
Ranganathan, Acharya, Saltz (1998), section 4, with hosts in the USA, Europe and Brazil. The expected time between
changes of at least 10 % is about two minutes there, and the jumps' defaults reproduce it. The paper prints no levels.
The levels and shares of the classes and the mean of 1/bandwidth are assumptions, and parameters like the rest.
"""

from __future__ import annotations

import math
import re
from statistics import fmean

import msgspec
import numpy as np

from thalweg.emulation.traces.trace import BandwidthTrace, FloatArray
from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.errors import UsageError

KB_BITS = 8 * 1024  # the paper's KB, in bits
DEFAULT_TRACES, DEFAULT_S = 64, 6 * 3600.0  # defaults: longer than any run of the papers
MAX_SAMPLES = 100_000_000  # 1.6 GB of rows; more must be a mistake
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*", re.ASCII)


class LinkClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Class of links: levels log-uniform between two rates, and the share of all links (any positive weights)."""

    name: str
    low_bps: float
    high_bps: float
    share: float


class TraceModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of traces. A trace is exp(level + big jumps + small jumps + jitter) on a grid of ``step_s``.

    ``classes``: the link classes. ``stretch``: factor of log-levels about ``pivot_bps``, which sets the spread between
    links. ``big_sigma`` and ``small_sigma``: standard deviations of the log of the factors, which hold for exponential
    times of mean ``big_hold_s`` and ``small_hold_s``. ``jitter``: standard deviation of the log of each sample's own
    factor. ``mean_s_per_kb``: one constant scales the whole pool so that the mean of 1/bandwidth is this many seconds
    per KB (1024 bytes). None: the classes' levels stay.
    """

    classes: tuple[LinkClass, ...] = (
        LinkClass("us", 20 * KB_BITS, 100 * KB_BITS, 0.375),
        LinkClass("atlantic", 5 * KB_BITS, 30 * KB_BITS, 0.375),
        LinkClass("brazil", 1 * KB_BITS, 8 * KB_BITS, 0.25),
    )
    stretch: float = 1.2
    pivot_bps: float = 20 * KB_BITS
    big_sigma: float = 1.0
    big_hold_s: float = 600.0
    small_sigma: float = 0.2
    small_hold_s: float = 150.0
    jitter: float = 0.03
    step_s: float = 10.0
    mean_s_per_kb: float | None = 0.1235

    def check(self) -> TraceModel:
        """Return the model itself. Raises UsageError with the parameter that is out of range."""
        if not self.classes:
            raise UsageError("a trace model needs at least one link class: NAME:LOW:HIGH:SHARE")
        if len({kind.name for kind in self.classes}) != len(self.classes):
            raise UsageError(f"link classes need different names: {', '.join(c.name for c in self.classes)}")
        for kind in self.classes:
            if not _NAME.fullmatch(kind.name):
                raise UsageError(f"link class name {kind.name!r} must be letters, digits, '-' and '_' only")
            if not 0.0 < kind.low_bps <= kind.high_bps < math.inf:
                raise UsageError(f"link class {kind.name!r} needs 0 < low <= high, not {kind.low_bps}, {kind.high_bps}")
            if not 0.0 < kind.share < math.inf:
                raise UsageError(f"link class {kind.name!r} has the share {kind.share}; it must be above 0")
        for field in ("stretch", "big_sigma", "small_sigma", "jitter"):
            if not 0.0 <= getattr(self, field) <= 10.0:
                raise UsageError(f"{field} is {getattr(self, field)}; it must be from 0 to 10")
        for field in ("pivot_bps", "big_hold_s", "small_hold_s", "step_s", "mean_s_per_kb"):
            value = getattr(self, field)
            if value is not None and not 0.0 < value < math.inf:
                raise UsageError(f"{field} is {value}; it must be finite and above 0")
        return self


def generate_pool(model: TraceModel, count: int, seed: int, duration_s: float) -> list[BandwidthTrace]:
    """Return ``count`` traces of ``duration_s`` seconds (rounded up to whole steps). Equal arguments give equal bytes.

    The name ``0000_us`` has number and class. Classes alternate, so every beginning of the pool has their shares.
    Except for the pool's scale constant, a trace depends only on model, seed and number. A longer trace begins with the
    shorter one. Raises UsageError.
    """
    model.check()
    if count < 1:
        raise UsageError(f"cannot generate {count} traces; ask for at least 1")
    if seed < 0:
        raise UsageError(f"the seed is {seed}; it must not be negative")
    if not 0.0 < duration_s < math.inf:
        raise UsageError(f"the duration is {duration_s} s; it must be finite and above 0")
    samples = max(1, math.ceil(duration_s / model.step_s - 1e-9))
    if samples * count > MAX_SAMPLES:
        raise UsageError(f"{count} traces of {samples} samples each are too many; ask for fewer, shorter or coarser")
    times = np.arange(samples, dtype=np.float64) * model.step_s
    times.flags.writeable = False
    kinds = _alternate(model.classes, count)
    drawn = [_rates(model, kind, seed, number, samples) for number, kind in enumerate(kinds)]
    factor = 1.0
    if model.mean_s_per_kb is not None:
        factor = KB_BITS * fmean(float((1.0 / rates).mean()) for rates in drawn) / model.mean_s_per_kb
    pool = []
    for number, (kind, rates) in enumerate(zip(kinds, drawn, strict=True)):
        whole: FloatArray = np.maximum(np.rint(rates * factor), 1.0)
        pool.append(BandwidthTrace(f"{number:04d}_{kind.name}", times, whole, samples * model.step_s))
    return pool


def _alternate(classes: tuple[LinkClass, ...], count: int) -> list[LinkClass]:
    """Return ``count`` classes. At every length, the number of a class is within one of its share."""
    total = plain_sum(kind.share for kind in classes)
    counts = [0] * len(classes)
    order: list[LinkClass] = []
    for length in range(1, count + 1):
        behind = [kind.share / total * length - done for kind, done in zip(classes, counts, strict=True)]
        chosen = behind.index(max(behind))
        counts[chosen] += 1
        order.append(classes[chosen])
    return order


def _rates(model: TraceModel, kind: LinkClass, seed: int, number: int, samples: int) -> FloatArray:
    """Return unscaled rates of one trace, shape (samples,). Every component has its own stream of random numbers."""

    def stream(component: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64([seed, number, component]))

    low, high = math.log(kind.low_bps), math.log(kind.high_bps)
    pivot = math.log(model.pivot_bps)
    level = pivot + model.stretch * (low + (high - low) * stream(0).random() - pivot)
    log_rate = level + model.jitter * stream(1).standard_normal(samples)
    for component, hold_s, sigma in (
        (2, model.big_hold_s, model.big_sigma),
        (4, model.small_hold_s, model.small_sigma),
    ):
        # Memoryless: an exponential time on a grid ends in each step with the same probability.
        jumps = stream(component).random(samples) < -math.expm1(-model.step_s / hold_s)
        held = np.cumsum(jumps)
        log_rate += sigma * stream(component + 1).standard_normal(int(held[-1]) + 1)[held]
    rates: FloatArray = np.exp(log_rate)
    return rates
