"""Id of a run: the stream, the number of the stripe if the run is a stripe, and the generation.

A stream over several trees has one run for each tree, a stripe (``core.stripes.striping``). Each stripe counts its
partitions from 0. The client reports which partitions of the stream the partitions of a stripe are (``StripeIndices``).
If a part of the graph is above the trees (``split_graph``), that part is the run without a stripe.

A run with failover that has lost a host restarts as a new generation (``core.failover.recovery``). The application
knows the run by the id of generation 0.

A generation is a single number of three parts. The upper part counts the clients that have continued the run. The
middle part is the number of a client process. The lower part counts the restarts by that process. Therefore hosts agree
on the order of generations. A process never gets ahead of a process that leads the run later. Two processes that
continue from copies of a journal never have the same generation.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

COUNT_BITS, PROCESS_BITS, TERM_BITS = 22, 26, 15
PROCESSES = 1 << PROCESS_BITS
LIMIT = 1 << (COUNT_BITS + PROCESS_BITS + TERM_BITS)
TREES = -1  # in place of a stripe's number, for all stripes together: within a client, never in a message
STRIPE_SIGN, GENERATION_SIGN = "/", "~"
Generation = Annotated[int, msgspec.Meta(ge=0, le=LIMIT - 1)]


class RunId(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, cache_hash=True, gc=False):
    """Id of one generation of a run, which is a stream or one stripe of a stream.

    ``NO_RUN`` is false. As text an id is ``r``, ``r/3`` for a stripe, ``r/3~2`` for generation 2 of the stripe.
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
        """Id of generation 0 of the run or stripe."""
        return RunId(self.stream, self.stripe) if self.generation else self

    @property
    def stream_id(self) -> RunId:
        """Id of the stream in generation 0, which the application knows."""
        return self if self.stripe is None and not self.generation else RunId(self.stream)

    @property
    def trees(self) -> RunId:
        """Id of the stripes of the stream together, if an upper graph is above. The upper graph has the id of the
        stream.
        """
        return RunId(self.stream, TREES)

    @property
    def asked_as(self) -> RunId:
        """Id under which hosts are pinged about the run: of a stripe the stream, so stripes are pinged together."""
        return self if self.stripe is None else RunId(self.stream)

    def of_stripe(self, number: int) -> RunId:
        """Return the id of a stripe of the stream, in generation 0."""
        return RunId(self.stream, number)

    @property
    def next_generation(self) -> RunId:
        """Id of the next generation by the same process."""
        return RunId(self.stream, self.stripe, self.generation + 1)

    @property
    def term(self) -> int:
        """Number of clients that have continued the run, up to the client of this generation."""
        return self.generation >> (COUNT_BITS + PROCESS_BITS)

    @property
    def leader(self) -> int:
        """Term and process number of the leading client process, as one number. It grows from process to process."""
        return self.generation >> COUNT_BITS

    @property
    def restarts(self) -> int:
        """Number of restarts of the run by the process that leads this generation."""
        return self.generation % (1 << COUNT_BITS)

    def taken_over(self, process: int, term: int = 0) -> RunId:
        """Return the first generation by a new process, later than the generations by earlier processes.

        Args:
            process: a number below ``PROCESSES`` that only this process has.
            term: the latest known term of the run, if later than the term of the id.
        """
        term = max(term, self.term) + 1
        return RunId(self.stream, self.stripe, (term << PROCESS_BITS | process % PROCESSES) << COUNT_BITS)


NO_RUN = RunId("")  # for events of no run, or of a host itself; never in a message
