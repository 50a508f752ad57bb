"""A web server and its client over a WAN: an outage, and a phone on 4G. The fixture ``wan`` comes with Thalweg."""

from __future__ import annotations

import subprocess
import sys

import pytest

from thalweg import CommandError, Testbed
from thalweg.emulation.pytest_plugin import Wan

SERVER = [sys.executable, "-P", "-u", "-m", "http.server", "--bind", "0.0.0.0", "8000"]
FETCH = """
import sys, time, urllib.request
began = time.monotonic()
page = urllib.request.urlopen(f"http://{sys.argv[1]}:8000", timeout=2).read()
print(len(page), time.monotonic() - began)
"""


def serve(bed: Testbed, host: str) -> None:
    """Start the server on a host, and wait until it listens."""
    server = bed.start(host, SERVER, stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert b"Serving HTTP" in server.stdout.readline()


def fetch(bed: Testbed, host: str) -> tuple[int, float]:
    """Return the number of bytes that the server answers, and the seconds that this takes on the client."""
    command = [sys.executable, "-I", "-c", FETCH, bed.hosts[host]]
    size_bytes, seconds = bed.run("client", command, check=True).stdout.split()
    return int(size_bytes), float(seconds)


def test_the_client_notices_an_outage_and_recovers(wan: Wan) -> None:
    bed = wan(["client", "server"], rate="10mbit")
    serve(bed, "server")
    assert fetch(bed, "server")[0] > 0
    bed.cut("client", "server", both=True)
    with pytest.raises(CommandError):
        fetch(bed, "server")
    bed.restore()
    assert fetch(bed, "server")[0] > 0


def test_a_page_takes_two_round_trips_over_4g(wan: Wan) -> None:
    bed = wan(["client", "server"], preset="4g")  # skipped on a kernel without netem
    serve(bed, "server")
    _, seconds = fetch(bed, "server")
    assert seconds > 0.04  # a round trip between two phones takes 42 ms, 22 ms at least
