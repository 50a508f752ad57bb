"""Table of presets, with the sources of the figures.

R1. Every figure of a preset names a source. A figure without a source is left out.
R2. The preset of an access line has an ``up_rate`` and a ``down_rate``, and belongs to a host. The preset of a path has
    a ``rate``, and belongs to links.
R3. The delay of one direction is half of a published round trip. Both directions get the same jitter, so that round
    trips vary as published.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from thalweg.emulation.links import units
from thalweg.emulation.links.shape import QUEUE, Queue
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.network.view import Link


class Source(NamedTuple):
    """Publication or data set, with a description and a web address."""

    text: str
    address: str


SOURCES: Mapping[str, Source] = {
    "bismark-2011": Source(
        "Sundaresan et al., Broadband Internet Performance: A View From the Gateway, SIGCOMM 2011 (slides: an AT&T DSL"
        " line sold as 6 Mbit/s down and 512 kbit/s up, measured at the gateway)",
        "https://studylib.net/doc/5307163/ppt-slides",
    ),
    "webpagetest": Source(
        "WebPageTest, profile DSL (round trip of 50 ms)",
        "https://github.com/catchpoint/WebPageTest/blob/master/www/settings/connectivity.ini.sample",
    ),
    "latency-2016": Source(
        "Høiland-Jørgensen et al., Measuring Latency Variation in the Internet, CoNEXT 2016 (queues of Internet"
        " clients under load: over 200 ms in the median)",
        "https://dl.acm.org/doi/10.1145/2999572.2999603",
    ),
    "ofcom-2023": Source(
        "Ofcom, Mobile Matters 2023, averages of the United Kingdom, October 2022 to March 2023",
        "https://www.ispreview.co.uk/index.php/2023/07/ofcom-publish-benchmarks-of-uk-5g-4g-and-3g-mobile-networks.html",
    ),
    "ofcom-2024": Source(
        "Ofcom, Mobile Matters 2024 (response times: the mean of the fastest and the slowest network)",
        "https://ofcom.org.uk/phones-and-broadband/mobile-phones/which-mobile-operator-has-the-longest-file-download-time/",
    ),
    "irish-5g-2020": Source(
        "Raca et al., Beyond Throughput, The Next Generation: a 5G Dataset, MMSys 2020 (standard deviation of round"
        " trips in a ping test: the median of the tests)",
        "https://github.com/uccmisl/5Gdataset",
    ),
    "opensignal-2022": Source(
        "Opensignal, 5G versus Wi-Fi in the USA, 2022 (Wi-Fi at home and in offices, the line behind it included)",
        "https://www.telecompetitor.com/5g-versus-wi-fi-performance-its-a-horserace-says-opensignal/",
    ),
    "wifi-2016": Source(
        "Pei et al., WiFi can be the weakest link of round trip network latency in the wild, INFOCOM 2016 (half of the"
        " packets wait over 20 ms at the Wi-Fi hop)",
        "https://paperexplained.cn/articles/paper/detail/aadd9fa14b6597dd00f5d77157bad602709f7d33",
    ),
    "ookla-2021": Source(
        "Ookla, satellite Internet in the USA, second quarter of 2021, medians",
        "https://www.ookla.com/articles/starlink-hughesnet-viasat-performance-q2-2021",
    ),
    "huston-2024": Source(
        "Huston, A Transport Protocol's View of Starlink, APNIC 2024 (successive round trips differ by 6.7 ms on"
        " average)",
        "https://blog.apnic.net/2024/05/17/a-transport-protocols-view-of-starlink/",
    ),
    "cloudpilot-2021": Source(
        "Toledo, CloudPilot 2021 (TCP streams of 10 s between data centres in Virginia, South Carolina or Montreal, and"
        " London: medians of 11 pairs of sites)",
        "https://github.com/kfirtoledo/CloudPilot_Project",
    ),
}  # fmt: skip


class Figure(NamedTuple):
    """Figure as written in a scenario file, with the key of the source in ``SOURCES``."""

    value: str
    source: str


class LinkPreset(msgspec.Struct, frozen=True):
    """Preset of an access line or a path: a title, and figures by key of a scenario file."""

    title: str
    figures: Mapping[str, Figure]

    @property
    def of_host(self) -> bool:
        """Return whether the preset is an access line, which belongs to a host (R2)."""
        return "up_rate" in self.figures


PRESETS: Mapping[str, LinkPreset] = {
    "adsl": LinkPreset(
        "ADSL line",
        {
            "up_rate": Figure("460kbit", "bismark-2011"),
            "down_rate": Figure("5.6mbit", "bismark-2011"),
            "delay": Figure("25ms", "webpagetest"),
            "queue": Figure("200ms", "latency-2016"),
        },
    ),
    "4g": LinkPreset(
        "4G (LTE) phone",
        {
            "up_rate": Figure("7.6mbit", "ofcom-2023"),
            "down_rate": Figure("29.5mbit", "ofcom-2023"),
            "delay": Figure("10.5ms", "ofcom-2024"),
            "jitter": Figure("4.9ms", "irish-5g-2020"),
            "queue": Figure("200ms", "latency-2016"),
        },
    ),
    "5g": LinkPreset(
        "5G phone",
        {
            "up_rate": Figure("14.7mbit", "ofcom-2023"),
            "down_rate": Figure("129.9mbit", "ofcom-2023"),
            "delay": Figure("9.4ms", "ofcom-2024"),
            "jitter": Figure("2.45ms", "irish-5g-2020"),
            "queue": Figure("200ms", "latency-2016"),
        },
    ),
    "wifi": LinkPreset(
        "Wi-Fi at home or in an office",
        {
            "up_rate": Figure("19mbit", "opensignal-2022"),
            "down_rate": Figure("89.6mbit", "opensignal-2022"),
            "delay": Figure("10ms", "wifi-2016"),
            "queue": Figure("200ms", "latency-2016"),
        },
    ),
    "starlink": LinkPreset(
        "Starlink terminal",
        {
            "up_rate": Figure("13.89mbit", "ookla-2021"),
            "down_rate": Figure("97.23mbit", "ookla-2021"),
            "delay": Figure("22.5ms", "ookla-2021"),
            "jitter": Figure("7.2ms", "huston-2024"),
        },
    ),
    "geostationary": LinkPreset(
        "terminal of a geostationary satellite (Viasat)",
        {
            "up_rate": Figure("3.38mbit", "ookla-2021"),
            "down_rate": Figure("18.13mbit", "ookla-2021"),
            "delay": Figure("315ms", "ookla-2021"),
        },
    ),
    "transatlantic": LinkPreset(
        "path between data centres in eastern North America and London",
        {
            "rate": Figure("287mbit", "cloudpilot-2021"),
            "delay": Figure("39.4ms", "cloudpilot-2021"),
        },
    ),
}


def find_preset(name: Any) -> LinkPreset:
    """Return the preset with this name. If there is none, raises UsageError with the nearest name."""
    if not isinstance(name, str) or name not in PRESETS:
        raise UsageError(f"there is no preset {units.shown(name)}; {nearest(str(name), PRESETS)}")
    return PRESETS[name]


def preset_name(name: Any) -> str:
    """Check that a preset has this name, and return the name. Raises UsageError if there is no such preset."""
    find_preset(name)
    return str(name)


# --- in bit/s, seconds and shares ---------------------------------------------------------------------


class Line(NamedTuple):
    """Figures of an access line or a path. The defaults stand for no line, so for no limit and no delay."""

    up_bps: float = math.inf
    down_bps: float = math.inf
    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    queue: Queue = QUEUE


def line(name: str | None) -> Line:
    """Return the figures of a preset. The rate of a path counts for both directions. None: no line."""
    if name is None:
        return Line()
    written = {key: figure.value for key, figure in find_preset(name).figures.items()}
    up, down = (written[key] if key in written else written["rate"] for key in ("up_rate", "down_rate"))
    return Line(
        units.rate_bps(up),
        units.rate_bps(down),
        units.seconds(written.get("delay", 0)),
        units.seconds(written.get("jitter", 0)),
        units.share(written.get("loss", 0)),
        Queue(*units.queue(written["queue"])) if "queue" in written else QUEUE,
    )


def by_lines(lines: Mapping[str, str | None], links: Iterable[Link]) -> dict[tuple[str | None, str | None], list[Link]]:
    """Return the links, grouped by the lines of source and target. ``lines``: line of every host, None without one."""
    groups: dict[tuple[str | None, str | None], list[Link]] = {}
    for link in links:
        groups.setdefault((lines[link.source], lines[link.target]), []).append(link)
    return groups


def between(source: str | None, target: str | None = None) -> dict[str, float | Queue]:
    """Return the figures of a link between hosts with these lines, by field of ``LinkShape``. None: no line.

    Delays and jitters add up, and losses are independent. The rate and the queue are those of the slower line. The
    figures of a path's preset are ``between(path)``.
    """
    up, down = line(source), line(target)
    slower = up if up.up_bps <= down.down_bps else down
    return {
        "rate_bps": min(up.up_bps, down.down_bps),
        "delay_s": up.delay_s + down.delay_s,
        "jitter_s": up.jitter_s + down.jitter_s,
        "loss": 1 - (1 - up.loss) * (1 - down.loss),
        "queue": slower.queue,
    }
