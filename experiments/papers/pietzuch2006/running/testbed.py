"""Shares on hosts in network namespaces, on this machine's kernel or in a separate User-Mode Linux.

Links have the network's delays if the kernel has netem. Without netem the traffic is measured all the same.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from thalweg.emulation.scenarios.timeline import Timeline
from thalweg.emulation.testbeds.netns import NetnsTestbed
from thalweg.emulation.uml.files import NEEDED
from thalweg.experiments.papers.pietzuch2006.running.job import SAMPLE_S, Got, Job, Ran, Share
from thalweg.experiments.run_config import CLIENT
from thalweg.experiments.runs.processes import UML_PATIENCE, Processes, fail
from thalweg.middleware.errors import CapabilityError
from thalweg.middleware.platform import check_linux

WORKER = "thalweg.experiments.papers.pietzuch2006.running.worker"
DECODER = msgspec.json.Decoder(dict[str, Any])


def emulated(
    shares: tuple[Share, ...], network: Timeline, partitions: int, *, kernel: str = "host", delays: bool = False
) -> Ran:
    """Run all shares at the same time. Raise CapabilityError if this machine lacks namespaces, the kernel, or required
    ``delays``.
    """
    bed: NetnsTestbed
    if kernel == "uml":
        check_linux(NEEDED)
        from thalweg.emulation.uml.testbed import UmlTestbed  # its imports need Linux

        bed = UmlTestbed(list(network.hosts))
    else:
        bed = NetnsTestbed(list(network.hosts))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.callback(bed.down)
        bed.up()
        shapes = network.wall_shapes()
        try:
            bed.shape(shapes)
        except CapabilityError:
            if delays:
                raise
            bed.shape({link: shape._replace(delay_s=0.0) for link, shape in shapes.items()})
        logs = Path(folder)
        processes = Processes(bed, stack, logs)
        if kernel == "uml":
            processes.patience = UML_PATIENCE
        addresses = processes.start_hosts(
            [host for host in network.hosts if host != CLIENT], logs, allow=(), time_scale=network.time_scale
        )
        listen = processes.listen(CLIENT)
        words = processes.start_worker(WORKER, Job(shares, partitions, addresses, listen, folder, network.time_scale))
        if kernel == "host":  # another kernel's clock is not ours
            bed.start_sampling(SAMPLE_S)
        done = next(words)
        if done.event != "done":
            fail(done)
        samples = []
        if kernel == "host":
            bed.stop_sampling()
            offset_s = time.time() - time.monotonic()
            samples = [msgspec.structs.replace(sample, at_s=sample.at_s + offset_s) for sample in bed.samples()]
        processes.end()
        rows = [
            DECODER.decode(line) for path in sorted(logs.glob("*.jsonl")) for line in path.read_bytes().splitlines()
        ]
    got = msgspec.convert(done.detail["got"], dict[str, list[Got]])
    return Ran(shares, partitions, got, rows, done.detail["placements"], samples)
