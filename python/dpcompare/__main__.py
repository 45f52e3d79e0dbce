"""__main__.py - dpcompare's front door: puts the package on the path and ends well by a signal.

    build/dpcompare --quick --out DIR          or: python3 python/dpcompare --quick --out DIR

Everything else is in cli.py.
"""
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True

from dpcompare.cli import main  # noqa: E402
from measuring.process import Failed  # noqa: E402

SIGNALS = [signal.SIGHUP, signal.SIGINT, signal.SIGTERM]


def leave(number, _frame):
    """Programs that were started are ended on the way out, which a second signal does not cut
    short. Runs that are over are kept: the same command goes on from there."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    print(f"dpcompare: {signal.Signals(number).name}: what was measured is kept; the same command "
          "goes on from there", file=sys.stderr)
    sys.exit(128 + number)


if __name__ == "__main__":
    for one in SIGNALS:
        signal.signal(one, leave)
    try:
        sys.exit(main())
    except Failed as error:
        sys.exit(f"dpcompare: {error}")
