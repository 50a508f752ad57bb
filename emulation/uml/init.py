"""The first process of a User-Mode Linux kernel, which runs this file by itself: ``python -I -S init.py``."""

from __future__ import annotations

import sys


def main() -> None:
    """Find the package without site-packages, and do its work."""
    sys.path.insert(0, __file__.rsplit("/", 4)[0])
    from thalweg.emulation.uml import inside

    inside.main()


if __name__ == "__main__":
    main()
