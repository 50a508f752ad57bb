"""Runner of the examples of a page: ``python tests/pages.py README.md`` compares each output with what the page shows.

A block with a ``title`` is a file, which is written into the working folder. A ``console`` block has commands, on lines
that begin with ``$ ``, and their output. The page's commands run in one shell, from top to bottom. A line ``…`` stands
for any number of lines, and ``…`` within a line for any text.

Comments before a block say how it is run and compared. Commas separate several of them in one comment.

- ``<!-- test: figures vary -->``: any number stands for any other, but not within a name, such as ``h3``
- ``<!-- test: exit 1 -->``: exit status of the last command
- ``<!-- test: goes on -->``: the last command does not end
- ``<!-- test: in the checkout -->``: commands run in the page's own folder
- ``<!-- test: long -->``: only ``--long`` runs the block
- ``<!-- test: skip, REASON -->``: the block is left out

``<!-- test: machines h1 client -->`` at the top of a page opens an emulated WAN with these hosts. Prompts such as
``h1$ `` then run their commands on that host, in a folder of its own.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple, Protocol, Self

import psutil
from markdown_it import MarkdownIt
from patience import patience

from thalweg import Testbed

STEP_S, LONG_S = 60.0, 600.0  # limits for one command, on an idle machine
GRACE_S = 3  # between SIGTERM and SIGKILL
ELLIPSIS = "…"
PROMPT = re.compile(r"^([a-z][a-z0-9-]*)?\$ (.*)$")
COMMENT = re.compile(r"<!-- test: (.*?) -->")
TITLE = re.compile(r'title="([^"]+)"')
# Pieces of an output's line. In the second pattern figures vary, but a name with digits is no figure.
PIECES = re.compile(r"(?P<text>…)|.")
FIGURES = re.compile(r"(?P<text>…)|[^\W\d]\w*|(?P<figure>-?\d(?:[\d,]|\.\d)*(?:e[+-]?\d+)?)|(?P<spaces> +)|.")
STAND_FOR = {"text": ".*?", "figure": r"-?\d[\d,.]*(?:e[+-]?\d+)?", "spaces": " +"}
BASH = ["bash", "--norc", "--noprofile"]
ENDED = "--thalweg-page-command-ended--"


class PageError(AssertionError):
    """Difference between a page and the output of an example, with the page's line."""


class Written(NamedTuple):
    """File that a page shows."""

    name: str
    text: str


class Step(NamedTuple):
    """Command, name of the machine that runs the command ("" for the reader's own), and output that the page shows.

    ``hints`` are those of the block's comments. ``line`` is the page's line of the command.
    """

    machine: str
    command: str
    shown: tuple[str, ...]
    line: int
    hints: tuple[str, ...] = ()

    @property
    def status(self) -> int:
        """Return the exit status that the page expects."""
        return next((int(hint.removeprefix("exit ")) for hint in self.hints if hint.startswith("exit ")), 0)


class Page(NamedTuple):
    """Examples of a page in order, and the names of the hosts of the page's WAN. Without a WAN there are none."""

    examples: tuple[Written | Step, ...]
    machines: tuple[str, ...]


def read_page(text: str) -> Page:
    """Return the examples of a page in Markdown."""
    examples: list[Written | Step] = []
    machines: tuple[str, ...] = ()
    hints: list[str] = []
    for token in MarkdownIt().parse(text):
        if token.type == "html_block":
            for hint in COMMENT.findall(token.content):
                if hint.startswith("machines "):
                    machines = tuple(hint.split()[1:])
                else:
                    hints += hint.split(", ")
        elif token.type == "fence":
            if "skip" not in hints:
                first = (token.map or [0])[0] + 2
                if title := TITLE.search(token.info):
                    examples.append(Written(title[1], token.content))
                elif token.info.split()[:1] == ["console"]:
                    examples += _steps(token.content.splitlines(), first, hints)
            hints = []
        elif token.type == "inline":
            hints = []
    return Page(tuple(examples), machines)


def _steps(lines: Sequence[str], first: int, hints: Sequence[str]) -> Iterator[Step]:
    """Yield the commands of a console block. Only the last command has the block's exit status, and may go on."""
    steps: list[tuple[str, str, list[str], int]] = []
    rest = iter(enumerate(lines, first))
    for number, line in rest:
        if prompt := PROMPT.match(line):
            command = prompt[2]
            while command.endswith("\\"):
                command = command[:-1] + next(rest)[1].lstrip()
            steps.append((prompt[1] or "", command, [], number))
        elif steps:
            steps[-1][2].append(line)
    for count, (machine, command, shown, number) in enumerate(steps, 1):
        of_last = count == len(steps)
        own = tuple(hint for hint in hints if of_last or not hint.startswith(("exit ", "goes on")))
        yield Step(machine, command, tuple(shown), number, own)


def pattern(shown: Sequence[str], figures_vary: bool) -> str:
    """Return the regular expression of the outputs that agree with what a page shows. Each line ends with a newline.

    Figures do not vary within names, such as ``h3``.
    """
    parts = []
    for line in shown:
        if line.strip() == ELLIPSIS:
            parts.append("(?:.*\n)*?")
            continue
        pieces = (FIGURES if figures_vary else PIECES).finditer(line.rstrip())
        parts += [STAND_FOR.get(piece.lastgroup or "") or re.escape(piece[0]) for piece in pieces]
        parts.append("[ \t]*\n")
    return "".join(parts)


def agrees(step: Step, output: str, beginning: bool = False) -> bool:
    """Return whether an output, or its beginning, agrees with the page. A step without output accepts every output."""
    lines, shown = [line.rstrip() for line in output.splitlines()], [line for line in step.shown if line.strip()]
    lines = [line for line in lines if line]
    if not shown:
        return True
    match = re.match if beginning else re.fullmatch
    return match(pattern(shown, "figures vary" in step.hints), "".join(f"{line}\n" for line in lines)) is not None


class Process(Protocol):
    """Shell of a session: a process of this machine, or of a host of a WAN."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None


class Session:
    """Shell on one machine that runs the commands of a page, one after the other."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout
        self._read, self._count = b"", 0
        self._goes_on = False
        self._write("set -m")  # each command in a process group of its own, which the terminal would interrupt

    def run(self, step: Step) -> None:
        """Run a command until its end. A command that goes on runs until it has printed the page's output.

        Raises PageError if the output or the exit status differs from the page.
        """
        self.stop()
        goes_on = "goes on" in step.hints
        ends = self._ends()
        command = f"{{ {step.command}\n}} </dev/null; {ends}"
        self._write(f"{{ {command}\n}} &" if goes_on else command)
        self._goes_on = goes_on
        limit_s = LONG_S if "long" in step.hints else STEP_S
        output, status = self._until_ended(limit_s, lambda text: goes_on and agrees(step, text, beginning=True))
        where = f"line {step.line}: {step.command!r}"
        if status is None:
            if goes_on and agrees(step, output, beginning=True):
                return
            raise PageError(f"{where} has not ended as the page shows; it printed\n{output}")
        if goes_on:
            raise PageError(f"{where} has ended with {status}; it printed\n{output}")
        if status != step.status:
            raise PageError(f"{where} has the exit status {status}; it printed\n{output}")
        if not agrees(step, output):
            shown = "\n".join(step.shown)
            raise PageError(f"{where} printed\n{output}\nand the page shows\n{shown}")

    def stop(self) -> None:
        """End a command that goes on, and wait for its end.

        The command gets SIGTERM, and later SIGKILL. A process inherits signals that an ancestor has blocked or ignored.
        """
        if self._goes_on:
            self._goes_on = False
            later = f"{{ sleep {GRACE_S}; kill -KILL -- -$job; }}"
            self._write(
                f"job=$!; kill -TERM -- -$job; {later} & late=$!; wait $job; kill -KILL -- -$late; {self._ends()}"
            )
            self._until_ended(STEP_S, lambda _: False)

    def _ends(self) -> str:
        """Return a shell command that prints a mark and the exit status after the next command."""
        self._count += 1
        return f"printf '\\n%s %s\\n' {ENDED}{self._count} $?"

    def _write(self, line: str) -> None:
        self._in.write(f"{line}\n".encode())
        self._in.flush()

    def _until_ended(self, within_s: float, enough: Callable[[str], bool]) -> tuple[str, int | None]:
        """Return the output and the exit status. The status is None if the command has not ended."""
        end = re.compile(rb"\n" + f"{ENDED}{self._count}".encode() + rb" (\d+)\n")
        limit_s = time.monotonic() + patience(within_s)
        while (left_s := limit_s - time.monotonic()) > 0:
            if ended := end.search(self._read):
                output, self._read = self._read[: ended.start()], self._read[ended.end() :]
                return output.decode(errors="replace"), int(ended[1])
            if enough(text := self._read.decode(errors="replace")):
                self._read = b""
                return text, None
            if select.select([self._out], [], [], left_s)[0]:
                if not (more := os.read(self._out.fileno(), 1 << 16)):
                    break
                self._read += more
        return self._read.decode(errors="replace"), None


def environment(home: Path, runtime: Path) -> Mapping[str, str]:
    """Return the environment of a reader's shell: this Python's programs, and nothing of the test run.

    Args:
        runtime: a folder with a short path for sockets, so that no testbed of others is seen.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin", "/sbin"])
    inherited = {name: os.environ[name] for name in ("LANG", "TMPDIR", "JAVA_HOME", "PYTHONPATH") if name in os.environ}
    return inherited | {
        "PATH": path,
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(runtime),
        "TERM": "dumb",
        "NO_COLOR": "1",
        "COLUMNS": "100",
        "LC_ALL": "C.UTF-8",
    }


class Shells:
    """Sessions of a page: one for the reader's own machine, and one for each host of the page's WAN."""

    def __init__(self, folder: Path, machines: Sequence[str]) -> None:
        self._folder, self._machines = folder, machines
        self._sessions: dict[str, Session] = {}
        self._ends = ExitStack()
        self._bed: Testbed | None = None
        self._runtime = folder

    def __enter__(self) -> Self:
        with ExitStack() as ends:
            self._runtime = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="run-")))
            if self._machines:
                self._bed = ends.enter_context(Testbed.open("netns", self._machines, rate="20mbit"))
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def folder(self, machine: str) -> Path:
        """Return the working folder of a machine."""
        folder = self._folder / machine
        folder.mkdir(exist_ok=True)
        return folder

    def write(self, file: Written) -> None:
        """Write a file on every machine."""
        for machine in ("", *self._machines):
            path = self.folder(machine) / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.text, encoding="utf-8")

    def session(self, machine: str) -> Session:
        """Return the session of a machine. The session begins at its first use."""
        if machine not in self._sessions:
            self._sessions[machine] = self._ends.enter_context(self._on_host(machine) if machine else self._here())
        return self._sessions[machine]

    @contextmanager
    def _here(self) -> Iterator[Session]:
        folder = self.folder("")
        with subprocess.Popen(
            BASH, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder,
            env=environment(folder, self._runtime), start_new_session=True,
        ) as shell:  # fmt: skip
            try:
                yield (session := Session(shell))
                session.stop()
            finally:
                for process in psutil.process_iter():
                    with suppress(psutil.Error, OSError):
                        if os.getsid(process.pid) == shell.pid:
                            process.kill()
                if any(self._runtime.iterdir()):  # a page that fails leaves its testbeds up
                    down = [sys.executable, "-m", "thalweg", "testbed", "down", "--all"]
                    subprocess.run(down, env=environment(folder, self._runtime), stdout=subprocess.DEVNULL, check=True)

    @contextmanager
    def _on_host(self, machine: str) -> Iterator[Session]:
        if self._bed is None or machine not in self._machines:
            raise PageError(f"the page names no machine {machine!r} in its comment <!-- test: machines … -->")
        folder = self.folder(machine)
        shell = self._bed.start(
            machine, BASH, env=environment(folder, self._runtime), cwd=folder, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            yield (session := Session(shell))
            session.stop()
        finally:
            shell.kill()
            shell.wait()
            shell.close()


def run_page(page: Path, folder: Path, tell: Callable[[str], None] = lambda _: None, *, long: bool = False) -> int:
    """Run the examples of a page in a folder, and return the number of commands. Raises PageError.

    Args:
        long: run examples that take minutes, too.
    """
    examples, machines = read_page(page.read_text(encoding="utf-8"))
    count = 0
    with Shells(folder, machines) as shells:
        for example in examples:
            if isinstance(example, Written):
                shells.write(example)
                continue
            if "long" in example.hints and not long:
                continue
            begun_s = time.monotonic()
            if "in the checkout" in example.hints:
                example = example._replace(command=f"(cd {page.resolve().parent} && {example.command})")
            shells.session(example.machine).run(example)
            count += 1
            tell(f"{page}:{example.line}: {time.monotonic() - begun_s:5.1f} s  {example.machine}$ {example.command}")
    return count


def main(words: Sequence[str]) -> int:
    """Run the named pages, and return the exit status."""
    status, long = 0, "--long" in words
    for word in words:
        if word == "--long":
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(
                    f"{word}: {run_page(Path(word), Path(folder), print, long=long)} commands, all as shown", flush=True
                )
            except PageError as error:
                print(f"{word}: {error}", file=sys.stderr)
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
