"""The id of a run: its stream, the stripe of the stream that it is, and its generation.

A stream that goes over several trees at once (``core.stripes.striping``) is one run for each of them, its stripe. Each
counts its partitions from 0. The client of a stripe says which partition of the stream each of them is
(``StripeIndices``). Where some of the graph is above the trees (``split_graph``), that is the run without a stripe.

A run that outlives its hosts begins anew, as another generation, when it has lost one (``core.failover.recovery``). The
application knows the run by the id of generation 0.

A generation is one number. Its upper part counts the clients that went on with the run. Its middle part is another one
for each process of a client. Its lower part counts what one process began anew. So all hosts agree on an order, a
process never gets before one that leads the run after it, and two processes that go on with copies of one journal never
have the same generation.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

COUNT_BITS, PROCESS_BITS, TERM_BITS = 22, 26, 15
PROCESSES = 1 << PROCESS_BITS
LIMIT = 1 << (COUNT_BITS + PROCESS_BITS + TERM_BITS)
TREES = -1  # instead of a stripe's number, for all of them together: within a client, and in no message
STRIPE_SIGN, GENERATION_SIGN = "/", "~"
Generation = Annotated[int, msgspec.Meta(ge=0, le=LIMIT - 1)]


class RunId(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, cache_hash=True, gc=False):
    """Generation ``generation`` of a run: of a stream, or of its stripe of number ``stripe``.

    ``NO_RUN`` is false. In text an id is ``r``, ``r/3`` for a stripe, ``r/3~2`` for its generation 2.
    """

    stream: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    stripe: Annotated[int, msgspec.Meta(ge=0, lt=10**9)] | None = None
    generation: Generation = 0

    def __bool__(self) -> bool:
        return self.stream != ""

    def __str__(self) -> str:
        stripe = "" if self.stripe is None else STRIPE_SIGN if self.stripe == TREES else f"{STRIPE_SIGN}{self.stripe}"
        return f"{self.stream}{stripe}{GENERATION_SIGN}{self.generation}" if self.generation else self.stream + stripe

    @property
    def first_generation(self) -> RunId:
        """Generation 0 of the run, or of the stripe."""
        return RunId(self.stream, self.stripe) if self.generation else self

    @property
    def stream_id(self) -> RunId:
        """The id of the stream, which the application knows."""
        return self if self.stripe is None and not self.generation else RunId(self.stream)

    @property
    def trees(self) -> RunId:
        """All stripes of the stream together, where they feed a run above them, which has the id of the stream."""
        return RunId(self.stream, TREES)

    @property
    def asked_as(self) -> RunId:
        """What a run's hosts are asked about together: the stream that it is a stripe of, or the run alone."""
        return self if self.stripe is None else RunId(self.stream)

    def of_stripe(self, number: int) -> RunId:
        """Return the id of a stripe of the stream."""
        return RunId(self.stream, number)

    @property
    def next_generation(self) -> RunId:
        """The next generation, by the same process."""
        return RunId(self.stream, self.stripe, self.generation + 1)

    @property
    def term(self) -> int:
        """How many clients have gone on with the run, up to that of this generation."""
        return self.generation >> (COUNT_BITS + PROCESS_BITS)

    @property
    def leader(self) -> int:
        """Which process of a client leads this generation, and whether before or after others."""
        return self.generation >> COUNT_BITS

    @property
    def restarts(self) -> int:
        """How often the process that leads this generation has begun the run anew."""
        return self.generation % (1 << COUNT_BITS)

    def taken_over(self, process: int, term: int = 0) -> RunId:
        """Return the first generation by another process. It is later than all generations by processes before.

        Args:
            process: a number below ``PROCESSES`` that no other process has.
            term: the latest term that is known of the run, if another id than this has it.
        """
        term = max(term, self.term) + 1
        return RunId(self.stream, self.stripe, (term << PROCESS_BITS | process % PROCESSES) << COUNT_BITS)


NO_RUN = RunId("")  # what concerns no run, or a host itself; in no message
