"""Choice of the kind of link for each flow of a host in the next period: Algorithm 4.

- R1: Flows are grouped by the next host. The flows of a group with the highest priority get the direct dedicated link,
  until its capacity is used.
- R2: If the budget of a remaining flow pays for hosts in between, the flow keeps its dedicated path through such hosts,
  or a path is searched. The flow is on the public network until the path is reserved.
- R3: Every other flow is on the public network.

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
    """Edge of a running task on its way to the next host, as the sending host sees it.

    ``behind_bits``: how much less was sent than was due. ``most_empty``: hosts in between that the flow may pay for.
    """

    key: int
    to: Host
    rate_bps: float
    behind_bits: float
    kind: Kind
    most_empty: int
    price: float = 1.0

    def priority(self, period_s: float) -> float:
        """Return the price per byte times the needed rate."""
        return self.price * (self.rate_bps + self.behind_bits / period_s)


def reallocate(flows: Sequence[OutgoingFlow], room_bps: Mapping[Host, float], period_s: float) -> dict[int, Choice]:
    """Return each flow's new kind of link, by the flow's key. ``room_bps``: rates of direct links for these flows.

    Among flows of one priority, flows on the direct link stay.
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
