"""The record of a testbed as its users have it: fetched from the supervisor, with names and times that people use."""

from __future__ import annotations

import time
from base64 import b64decode
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.recording.entries import Happening, Head, HostChange, LinkChange, Process
from thalweg.emulation.recording.samples import Sample
from thalweg.emulation.supervisor import requests
from thalweg.emulation.supervisor.client import SupervisorClient
from thalweg.middleware.network.view import Link

Column = npt.NDArray[np.float64]


class Cut(NamedTuple):
    """A link passed nothing from ``begin_s`` on; ``end_s`` None: it still does not. ``by``: who cut it.

    ``began``, ``ended``: the numbers of the changes that did it.
    """

    link: Link
    begin_s: float
    end_s: float | None
    by: str
    began: int
    ended: int | None


class Recording(msgspec.Struct):
    """The record of a testbed from its start to now. All times are seconds since its start.

    ``began_unix_s``: the start. ``links``: those that samples and changes name by numbers. ``samples``: a row for each
    ``Sample``, in the order of their ends.
    """

    began_unix_s: float
    now_s: float
    links: list[Link]
    samples: Column
    changes: list[LinkChange]
    host_changes: list[HostChange]
    processes: list[Process]
    happenings: list[Happening]
    left_out: dict[str, int]
    joined_s: float
    refusal: str
    cost_s: float
    begin_s: float = 0.0
    """What ended before is left out, except ``changes``, which tell what was asked at that moment."""

    def since(self, begin_s: float) -> Recording:
        """Return what went on from a moment on."""
        begin_s = max(0.0, begin_s)
        return msgspec.structs.replace(
            self,
            samples=self.samples[self.column("end_s") > begin_s],
            host_changes=[one for one in self.host_changes if one.at_s >= begin_s],
            processes=[one for one in self.processes if one.end_s is None or one.end_s >= begin_s],
            happenings=[one for one in self.happenings if one.end_s is None or one.end_s >= begin_s],
            begin_s=begin_s,
        )

    def column(self, name: str) -> Column:
        """Return a column of the samples."""
        found: Column = self.samples[:, Sample._fields.index(name)]
        return found

    def recent_changes(self) -> list[LinkChange]:
        """Return the changes that were made since ``begin_s``."""
        return [change for change in self.changes if change.at_s >= self.begin_s]

    def cuts(self) -> list[Cut]:
        """Return when links passed nothing, by the time when that began, except cuts that ended before ``begin_s``."""
        found, since = list[Cut](), dict[int, LinkChange]()
        for change in self.changes:
            if change.after.passes and change.link in since:
                began = since.pop(change.link)
                if change.at_s >= self.begin_s:
                    link, numbers = self.links[change.link], (began.number, change.number)
                    found.append(Cut(link, began.at_s, change.at_s, began.by, *numbers))
            elif not change.after.passes:
                since.setdefault(change.link, change)
        found += [Cut(self.links[one.link], one.at_s, None, one.by, one.number, None) for one in since.values()]
        return sorted(found, key=lambda cut: (cut.begin_s, cut.link))

    def shapes(self) -> dict[Link, LinkShape]:
        """Return the present shapes of links that have been changed."""
        return {self.links[change.link]: change.after for change in self.changes}


def fetch(client: SupervisorClient) -> Recording:
    """Fetch the record of a testbed that is up. Raises TestbedError if it does not answer."""
    answer = client.call(requests.Record(0))
    now_unix_s, head_bytes = time.time(), answer["head_bytes"]
    answers = [answer, *(client.call(requests.Record(part)) for part in range(1, answer["parts"]))]
    data = b"".join(b64decode(one["data"]) for one in answers)
    head = msgspec.json.decode(data[:head_bytes], type=Head)
    rows = np.frombuffer(data[head_bytes:], np.float64).reshape(-1, len(Sample._fields)).copy()
    began_s = head.began_s
    rows[:, 1:3] -= began_s
    rows = rows[np.argsort(rows[:, 2], kind="stable")]
    momentary: list[LinkChange | HostChange] = [*head.changes, *head.hosts]
    for change in momentary:
        change.at_s -= began_s
    lasting: list[Process | Happening] = [*head.processes, *head.happenings]
    for entry in lasting:
        entry.begin_s -= began_s
        if entry.end_s is not None:
            entry.end_s -= began_s
    return Recording(
        now_unix_s - (head.now_s - began_s), head.now_s - began_s, [Link(*link) for link in head.links], rows,
        head.changes, head.hosts, head.processes, head.happenings, head.left_out, head.joined_s,
        head.refusal, head.cost_s,
    )  # fmt: skip
