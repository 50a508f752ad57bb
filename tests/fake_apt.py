"""Stand-in for apt on a separate PATH, with packages that can be installed and virtual packages."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

SCRIPT = """#!/bin/sh
[ "$1 $LC_ALL" = "policy C" ] || exit 3
shift
for name; do
  case " {real} " in *" $name "*) echo "$name:
  Installed: (none)
  Candidate: 1.0-2
  Version table:
     1.0-2 500
        500 http://deb.example.org/debian stable/main amd64 Packages" ;; esac
  case " {virtual} " in *" $name "*) echo "$name:
  Installed: (none)
  Candidate: (none)
  Version table:" ;; esac
done
"""


def fake_apt(folder: Path, real: Collection[str] = (), virtual: Collection[str] = ()) -> None:
    """Write an ``apt-cache`` that answers as Debian's: nothing for unknown packages, and status 0 for all."""
    write_program(folder / "apt-cache", SCRIPT.format(real=" ".join(real), virtual=" ".join(virtual)))


def write_program(path: Path, text: str) -> Path:
    """Write an executable file, and return its path."""
    path.write_text(text)
    path.chmod(0o755)
    return path
