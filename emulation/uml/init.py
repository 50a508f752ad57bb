"""First process of a User-Mode Linux kernel. The kernel runs this file alone: ``python -I -S init.py``."""

from __future__ import annotations

import sys


def main() -> None:
    """Add the package to the path, without site-packages, and run ``uml.inside``."""
    sys.path.insert(0, __file__.rsplit("/", 4)[0])
    from thalweg.emulation.uml import inside

    inside.main()


if __name__ == "__main__":
    main()
