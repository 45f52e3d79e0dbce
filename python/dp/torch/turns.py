"""Names for the collectives of a process group, which come without: numbers in turn. cxx/turns.h says why and
how, and this is the same in Python.
"""
from __future__ import annotations

import threading
from typing import Any

TURNS = 256  # numbers where nothing repeats
PROOF = 16  # operations that must repeat at least
LONGEST = 512  # period
PAST = 2048  # operations remembered: twice turns and period
LEAST = 8  # numbers, of operations that hold BYTES together
LEAST_SMALL = 64  # of smaller ones
BYTES = 1 << 20
PATIENCE, PAUSE = 4, 64  # until a period is given up
_FACTOR, _MASK = 0x9e3779b97f4a7c15, (1 << 64) - 1
_FACTOR_PROOF = pow(_FACTOR, PROOF, 1 << 64)


class Turns:
    """The numbers of one process group. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by the lock.
        self._signatures = [0] * PAST
        self._bytes = [0] * PAST
        self._places: dict[int, int] = {}  # the last operation of each digest
        self._digest = 0  # of the last PROOF signatures
        self._count = 0  # operations
        self._first = 0  # operations before it count for nothing
        self._turns = TURNS
        self._is_periodic = False  # turns is a multiple of a period
        self._begin = self._shift = 0  # the first operation since then, and its number
        self._same = 0  # operations in a row that equal those `turns` before, at most `turns`
        self._known = 0  # the last operation at which it was `turns`
        self._period = self._run = 0  # one that may be, and how many operations speak for it

    def next(self, signature: Any, nbytes: int) -> tuple[int, bool, int]:
        """The number of the next operation; whether the last one of that number was the same operation of an
        earlier period; and how many operations there were before. The signature holds nothing in which ranks
        may differ, and the bytes of its data are 0 where they may."""
        with self._lock:
            at = self._count
            self._count = at + 1
            number = self._number_of(at)
            before = self._note(at, hash(signature) & _MASK, nbytes)
            is_same = (self._is_periodic and at >= self._first + self._turns
                       and self._signatures[(at - self._turns) % PAST] == self._signatures[at % PAST])
            self._same = min(self._same + 1, self._turns) if is_same else 0
            if self._same == self._turns:
                self._known = at
            if is_same:
                self._period = 0
                return number, self._same == self._turns, at
            if self._is_periodic and at - self._known > PATIENCE * self._turns + PAUSE:
                self._is_periodic, self._turns, self._begin = False, TURNS, at + 1
            self._find_period(at, at - before)
            return number, False, at

    def forget(self, count: int) -> None:
        """The operation after `count` others failed. Where ranks disagreed about it, their pasts differ up to
        there, so what comes behind must not depend on it."""
        with self._lock:
            self._first = max(self._first, count + 1)
            self._same = min(self._same, self._count - count - 1)
            self._period = 0

    def _note(self, at: int, signature: int, nbytes: int) -> int:
        """The last operation that had the same PROOF - 1 before it, or one long ago."""
        digest = self._digest * _FACTOR + signature
        if at >= PROOF:
            digest -= _FACTOR_PROOF * self._signatures[(at - PROOF) % PAST]
        self._digest = digest & _MASK
        index = at % PAST
        self._signatures[index], self._bytes[index] = signature, nbytes
        before = self._places.get(self._digest, at - PAST)
        self._places[self._digest] = at
        if len(self._places) > 2 * PAST:
            self._places = {digest: place for digest, place in self._places.items() if place > at - PAST}
        return before

    def _number_of(self, at: int) -> int:
        if not self._is_periodic:
            return at % TURNS
        turn = (at - self._begin) % self._turns
        return (self._shift + turn) % TURNS if self._turns <= TURNS else turn

    def _find_period(self, at: int, period: int) -> None:
        """Takes turns by this period, the distance of the last operation that had the same PROOF - 1 before it,
        if all since then and a period before were alike."""
        if period > min(LONGEST, at - self._first - PROOF):
            self._period = 0
            return
        self._run = self._run + 1 if period == self._period else 0
        self._period = period
        turns = self._turns_for(at, period)
        wanted = max(period, turns - period, PROOF)
        while self._run < wanted and at - self._run >= self._first + period and \
                self._signatures[(at - self._run) % PAST] == self._signatures[(at - self._run - period) % PAST]:
            self._run += 1
        if self._run < wanted or (self._is_periodic and turns == self._turns):
            return
        # The names of the last `turns` operations go on, where each had one of its own.
        goes_on = not self._is_periodic and turns <= TURNS and at + 1 - turns >= self._begin
        self._begin = at + 1
        self._shift = (self._begin - turns) % TURNS if goes_on else 0
        self._same = turns if goes_on else 0
        self._known = at
        self._turns = turns
        self._is_periodic = True
        self._period = 0

    def _turns_for(self, at: int, period: int) -> int:
        """How many numbers, a multiple of the period: a program that does not wait stops when all are in
        flight, so they are few only where a few hold much."""
        nbytes = sum(self._bytes[(at - i) % PAST] for i in range(period))
        turns = period
        while turns < LEAST or (turns < LEAST_SMALL and nbytes * (turns // period) < BYTES):
            turns += period
        return turns
