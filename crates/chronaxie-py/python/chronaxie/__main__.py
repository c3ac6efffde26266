"""The command line: ``python -m chronaxie`` and the script ``chronaxie``."""

from __future__ import annotations

import signal
import sys

from . import _native


def main() -> int:
    """Runs the command that ``sys.argv`` spells and returns its exit code."""
    # The command line's own handler ends long work in order; it leaves one that is already there alone.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.run(["chronaxie", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
