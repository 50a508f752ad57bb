"""The generations of a run: each has an id of its own, so that whatever is said of a run says of which.

A run that outlives its hosts begins anew, as another generation, when it has lost one (``core.failover.recovery``).
Generation 0 has the run's own id, by which the application knows it.

A generation is known by one number. Its upper part counts the clients that went on with the run, its middle part is
another one for each process of a client, and its lower part counts what one process began anew. So all hosts agree on
an order, a process never gets before one that leads the run after it, and two processes that go on with copies of one
journal never have the same generation.
"""

from __future__ import annotations

SIGN = "~"  # between a run's id and the generation
COUNT_BITS, PROCESS_BITS, TERM_BITS = 22, 26, 15
PROCESSES = 1 << PROCESS_BITS
LIMIT = 1 << (COUNT_BITS + PROCESS_BITS + TERM_BITS)
DIGITS = len(str(LIMIT))


def base_of(run: str) -> str:
    """The run's own id."""
    return run.partition(SIGN)[0]


def generation_of(run: str) -> int:
    """The number of the generation; of a name that no client of ours has made up, 0."""
    number = run.partition(SIGN)[2]
    if not (number.isascii() and number.isdecimal() and len(number) <= DIGITS):
        return 0
    generation = int(number)
    return generation if generation < LIMIT else 0


def following(run: str) -> str:
    """The id of the next generation, by the same process."""
    return f"{base_of(run)}{SIGN}{generation_of(run) + 1}"


def term_of(run: str) -> int:
    """Return how many clients have gone on with a run, up to that of a generation's id."""
    return generation_of(run) >> (COUNT_BITS + PROCESS_BITS)


def taken_over(run: str, process: int, term: int = 0) -> str:
    """Return the id of the first generation of another process, which is later than all by those before it.

    Args:
        process: a number below ``PROCESSES`` that no other process has.
        term: the latest term that is known of the run, if another id than ``run`` has it.
    """
    term = max(term, term_of(run)) + 1
    number = (term << PROCESS_BITS | process % PROCESSES) << COUNT_BITS
    return f"{base_of(run)}{SIGN}{number}"


def leader_of(generation: int) -> int:
    """Return which process of a client leads a generation, and whether before or after others."""
    return generation >> COUNT_BITS


def begun_anew(run: str) -> int:
    """Return how often the process that leads a generation has begun the run anew."""
    return generation_of(run) % (1 << COUNT_BITS)
