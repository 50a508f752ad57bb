"""Which flows of a host go over which kind of link in the next period: Algorithm 4.

- R1: flows are grouped by the next host; of a group those with the highest priority have the direct dedicated link,
  until its capacity is used;
- R2: of the others those whose budget pays for hosts in between keep their dedicated path through these, or look for
  one, and are on the public network until it is reserved;
- R3: what is left is on the public network.

The priority is the price per byte times the rate that the flow needs in the next period to catch up.

Source: Asaduzzaman and Maheswaran, section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from thalweg.experiments.papers.asaduzzaman2010.mapping.holdings import SLACK
from thalweg.experiments.papers.asaduzzaman2010.mapping.task import Host

Kind = Literal["direct", "relayed", "public"]
Choice = Literal["direct", "relayed", "search", "public"]


class OutgoingFlow(msgspec.Struct, frozen=True):
    """An edge of a running task on its way to the next host, as the host that sends it sees it.

    ``behind_bits``: less than what should have been sent by now. ``most_empty``: hosts in between that it may pay for.
    """

    key: int
    to: Host
    rate_bps: float
    behind_bits: float
    kind: Kind
    most_empty: int
    price: float = 1.0

    def priority(self, period_s: float) -> float:
        """Price per byte times the rate needed."""
        return self.price * (self.rate_bps + self.behind_bits / period_s)


def reallocate(flows: Sequence[OutgoingFlow], room_bps: Mapping[Host, float], period_s: float) -> dict[int, Choice]:
    """By the flows' keys, what each is to be on; ``room_bps``: of direct links, what their own flows may have of them.

    Among flows of one priority those stay that are on the link.
    """
    left = dict(room_bps)
    choices: dict[int, Choice] = {}
    for flow in sorted(flows, key=lambda flow: (-flow.priority(period_s), flow.kind != "direct", flow.key)):
        # R1: by falling priority, while the direct link has room
        if flow.rate_bps * (1 - SLACK) <= left.get(flow.to, 0.0):
            left[flow.to] -= flow.rate_bps
            choices[flow.key] = "direct"
        elif flow.kind == "relayed":
            choices[flow.key] = "relayed"  # R2: the flow keeps its dedicated path
        elif flow.most_empty > 0:
            choices[flow.key] = "search"
        else:
            choices[flow.key] = "public"  # R3: the budget pays for no host in between
    return choices
