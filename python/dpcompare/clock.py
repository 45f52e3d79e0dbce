"""clock.py - which runs fit into the time: how long each should take, and what gives way.

A run is made where it and all that is more important fit into what is left, so that a machine on
which not everything fits leaves out what matters least, says so, and ends in time. cli.py asks
before each run. It must not know how runs are made.
"""
import time

from dpcompare import rows as all_rows

SHARE = 4  # a run may take a quarter of the time at most: one that hangs leaves time for others


def importance(run):
    """Lower is more important. A turn of all rows comes before a second one of any; within a turn
    first the class that must have dps' bytes and the process that all curves are held against,
    then our other rows, then the grid of rates, then peers."""
    if run.row.mode:
        kind = 3
    elif run.study.grid:
        kind = 2
    else:
        kind = 0 if run.row.judged == all_rows.EXACT or run.row.single else 1
    return run.seed, kind


class Clock:
    """The time of a comparison, and what its runs took so far."""

    def __init__(self, limit_s, now=time.monotonic):
        self.limit_s, self.now = limit_s, now
        self.begin = now()
        self.took = {}  # {(study, row, ranks, link): seconds of the last one}
        self.alike = {}  # {(study, link, is a peer's): (seconds, what their study says, runs)}
        self.sides = {}  # {is a peer's: the same}

    def elapsed_s(self):
        return self.now() - self.begin

    def left_s(self):
        return self.limit_s - self.elapsed_s()

    def share_s(self):
        """The most that a run may take."""
        return self.limit_s / SHARE

    def run_limit_s(self):
        """Seconds after which a run that begins now is ended."""
        return max(1.0, min(self.share_s(), self.left_s()))

    @staticmethod
    def _key(run):
        return run.study.name, run.row.name, run.ranks, run.link

    @staticmethod
    def _kind(run):
        return run.study.name, run.link, bool(run.row.mode)

    def note(self, run, seconds):
        """Notes how long a run took."""
        self.took[self._key(run)] = seconds
        for sums, key in ((self.alike, self._kind(run)), (self.sides, bool(run.row.mode))):
            total, said, count = sums.get(key, (0.0, 0.0, 0))
            sums[key] = (total + seconds, said + run.study.estimate(run.row), count + 1)

    def _slowness(self, is_peer):
        """How many times as long as their studies say the runs took so far. Before there was a
        peer's: peers are no quicker than that where ours are slow."""
        for side, least in ((is_peer, 0.0), (False, 1.0)):
            if side in self.sides:
                total, said, _ = self.sides[side]
                return max(least, total / said)
        return 1.0

    def expected_s(self, run):
        """As long as the same took, or as its study's runs did, or as its study says, where others
        took as long as theirs say."""
        if self._key(run) in self.took:
            return self.took[self._key(run)]
        if self._kind(run) in self.alike:
            total, _, count = self.alike[self._kind(run)]
            return total / count
        return run.study.estimate(run.row) * self._slowness(bool(run.row.mode))

    def total_s(self, runs):
        return sum(map(self.expected_s, runs))

    def fits(self, run, left):
        """Whether it, and all of those that are left and are more important, fit. Of equally
        important ones the shortest come first: so most rows have their line."""
        mine = (*importance(run), self.expected_s(run))
        ahead = [one for one in left if (*importance(one), self.expected_s(one)) < mine]
        return self.total_s(ahead) + self.expected_s(run) <= self.left_s()
