"""``thalweg testbed``: verbs to launch, use and remove an emulated WAN."""

from __future__ import annotations

from thalweg.experiments.cli.commands import Verb, group

UP, USE, CHANGE, SUPPORT = "Up and down", "Use", "Change links", "Check and prepare"
OF_THE_COMMAND = {"ignore_unknown_options": True, "allow_interspersed_args": False}  # the command has options too

VERBS = {
    "up": Verb("testbed.up:up", "Bring up a testbed that stays until `testbed down`.", UP),
    "down": Verb("testbed.down:down", "Take testbeds down, and remove what crashed ones left.", UP),
    "status": Verb("testbed.status:status", "List the testbeds that are up, and those that crashed.", UP),
    "exec": Verb("testbed.exec:execute", "Run a command on a host of a testbed.", USE, OF_THE_COMMAND),
    "report": Verb("testbed.report:report", "Write a report of all that went on in a testbed.", USE),
    "logs": Verb("testbed.exec:logs", "Print the output of processes that `exec -d` started.", USE),
    "set": Verb("testbed.links:change", "Change links of a testbed that is up.", CHANGE),
    "cut": Verb("testbed.links:cut", "Cut links of a testbed that is up.", CHANGE),
    "restore": Verb("testbed.links:restore", "Undo cuts of links.", CHANGE),
    "reset": Verb("testbed.links:reset", "Reset TCP connections of a testbed that is up.", CHANGE),
    "play": Verb("testbed.links:play", "Play a scenario or a trace on a testbed that is up.", CHANGE),
    "verify": Verb("testbed.verify:verify", "Measure every link and compare it with its settings.", SUPPORT),
    "plan": Verb("testbed.plan:plan", "Check a scenario file, and show its hosts, links and events.", SUPPORT),
    "build": Verb("testbed.build:build", "Build the container image of docker hosts.", SUPPORT),
}

app = group(
    "testbed",
    """Launch an emulated WAN and use it.

    Hosts are network namespaces or containers. Every directed pair of hosts has its own rate, delay, jitter and loss.

    Nine hosts, 10 Mbit/s on every link: thalweg testbed up --hosts 9 --rate 10mbit

    A program on one of them: thalweg testbed exec h1 -- ping -c 3 client

    The end of all testbeds: thalweg testbed down
    """,
    VERBS,
)
