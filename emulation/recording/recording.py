"""Record of a testbed for its users: fetched from the supervisor, with names of links and times since the start."""

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
    """Time in which a link passed nothing. ``end_s``: None if the cut still lasts. ``by``: cause of the cut.

    ``began``, ``ended``: numbers of the changes that began and ended the cut.
    """

    link: Link
    begin_s: float
    end_s: float | None
    by: str
    began: int
    ended: int | None


class Recording(msgspec.Struct):
    """Record of a testbed from its start until now. Times are seconds since the start.

    ``began_unix_s``: Unix time of the start. ``links``: links by their numbers in samples and changes. ``samples``: a
    row for every ``Sample``, sorted by end.
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
    """Entries that ended before are left out, except ``changes``, which give the shapes at this time."""

    def since(self, begin_s: float) -> Recording:
        """Return the record from ``begin_s`` on. ``changes`` stays complete."""
        begin_s = max(0.0, begin_s)
        return msgspec.structs.replace(
            self,
            samples=self.samples[self.column("end_s") > begin_s],
            host_changes=[change for change in self.host_changes if change.at_s >= begin_s],
            processes=[entry for entry in self.processes if entry.end_s is None or entry.end_s >= begin_s],
            happenings=[entry for entry in self.happenings if entry.end_s is None or entry.end_s >= begin_s],
            begin_s=begin_s,
        )

    def column(self, name: str) -> Column:
        """Return the column of ``samples`` with this field of ``Sample``."""
        values: Column = self.samples[:, Sample._fields.index(name)]
        return values

    def recent_changes(self) -> list[LinkChange]:
        """Return the changes of links since ``begin_s``."""
        return [change for change in self.changes if change.at_s >= self.begin_s]

    def cuts(self) -> list[Cut]:
        """Return the cuts of links, sorted by begin. Cuts that ended before ``begin_s`` are left out."""
        spans, since = list[Cut](), dict[int, LinkChange]()
        for change in self.changes:
            if change.after.passes and change.link in since:
                began = since.pop(change.link)
                if change.at_s >= self.begin_s:
                    link, numbers = self.links[change.link], (began.number, change.number)
                    spans.append(Cut(link, began.at_s, change.at_s, began.by, *numbers))
            elif not change.after.passes:
                since.setdefault(change.link, change)
        spans += [Cut(self.links[cut.link], cut.at_s, None, cut.by, cut.number, None) for cut in since.values()]
        return sorted(spans, key=lambda cut: (cut.begin_s, cut.link))

    def shapes(self) -> dict[Link, LinkShape]:
        """Return the present shape of every link that has been changed."""
        return {self.links[change.link]: change.after for change in self.changes}


def fetch(client: SupervisorClient) -> Recording:
    """Fetch the record of a running testbed. Raises TestbedError if the testbed does not answer."""
    answer = client.call(requests.Record(0))
    now_unix_s, head_bytes = time.time(), answer["head_bytes"]
    answers = [answer, *(client.call(requests.Record(part)) for part in range(1, answer["parts"]))]
    data = b"".join(b64decode(reply["data"]) for reply in answers)
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
