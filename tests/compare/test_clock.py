#!/usr/bin/env python3
"""test_clock.py - dpcompare ends in time, whatever its runs take, and says what it left out."""
import os
import sys
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "python"))
sys.dont_write_bytecode = True

from dpcompare import cli, clock, rows, studies  # noqa: E402
from dpcompare.peers import find  # noqa: E402
from measuring import machine  # noqa: E402


class ClockTest(unittest.TestCase):
    """Runs that are made up: each takes what `cost` says, of a clock that is made up, too."""

    def setUp(self):
        self.options, self.time_s, self.made = cli.parse(["--quick"]), 0.0, []

    def make_runs(self, cost, wanted=None, failing=()):
        test = self

        class Lab:
            def done(self, run):
                return None

            def link_is_dead(self, link):
                return False

            def make(self, run, limit_s):
                seconds = min(cost(run), limit_s)
                test.time_s += seconds
                test.made.append(run)
                ok = cost(run) < limit_s and run.row.name not in failing
                return {"ok": ok, "why": "no end", "seconds": seconds, "key": run.key(),
                        "summary": {"steps": {"ms": [1.0], "loss": [1.0]}}}
        runs = studies.runs(studies.make(self.options), wanted or [*rows.OURS, *rows.PEERS])
        self.clock = clock.Clock(60 * self.options.limit, lambda: self.time_s)
        with mock.patch("builtins.print"):
            return runs, *cli.make_runs(runs, Lab(), self.clock)

    def test_where_all_fits_all_is_run(self):
        runs, records, failures, left_out = self.make_runs(lambda run: 1.5)
        self.assertEqual((len(records), failures, left_out), (len(runs), [], {}))
        self.assertEqual(self.made, runs)

    def test_whatever_runs_take_the_time_is_not_exceeded(self):
        limit_s = 60 * self.options.limit
        costs = (lambda run: 60.0 if run.row.mode else 1.5, lambda run: 30.0, lambda run: 1e6,
                 lambda run: 1e6 if run.row.name == "torch-ddp-bf16" else 2.0,
                 lambda run: 0.5 + 7 * (len(run.name) % 5), lambda run: 3.0 * run.seed)
        for at, cost in enumerate(costs):
            self.setUp()
            runs, records, failures, left_out = self.make_runs(cost)
            self.assertLessEqual(self.time_s, limit_s + 1.0, at)
            self.assertEqual(len(records) + len(left_out), len(runs), at)

    def test_what_gives_way_first_are_second_turns_and_long_peers(self):
        slow = {"torch-ddp-bf16": 40.0, "torch-fsdp2": 30.0}
        runs, records, failures, left_out = self.make_runs(
            lambda run: slow.get(run.row.name, 6.0 if run.row.mode else 1.5))
        self.assertEqual(failures, [])
        first = {run.row.name for run in left_out if run.seed == 1}
        self.assertLessEqual(first, set(slow))
        self.assertEqual([run.name for run in left_out if not run.row.mode], [])
        self.assertGreater(len([run for run in left_out if run.seed == 2]), 2)

    def test_the_exact_class_is_run_where_hardly_anything_fits(self):
        runs, records, failures, left_out = self.make_runs(lambda run: 6.0)
        of = [run for run in runs if run.seed == 1 and run.row.judged == rows.EXACT
              and not run.study.grid]
        self.assertLess(len(self.made), len(runs) / 2)
        self.assertFalse(set(of) & set(left_out))
        self.assertTrue(any(run.row.name == "topk" for run in left_out))

    def test_a_row_without_time_says_so_and_what_it_would_take(self):
        def cost(run):
            return 100.0 if run.row.name == "torch-ddp" else 3.0
        _, records, failures, left_out = self.make_runs(cost)
        found = cli.without_time(self.options, left_out, records)
        self.assertEqual(failures, [])
        self.assertEqual(found["torch-ddp"], "left out: the time of --quick, 4.25 minutes, was over; "
                         "it was ended after 64 s")
        self.assertNotIn("dps", found)

    def test_what_was_put_off_is_made_where_there_is_time_in_the_end(self):
        runs, records, failures, left_out = self.make_runs(
            lambda run: 12.0 if len(self.made) < 15 else 0.2)
        self.assertEqual((failures, left_out), ([], {}))
        self.assertNotEqual(self.made, runs)
        self.assertEqual(set(self.made), set(runs))

    def test_a_run_of_ours_that_hangs_is_a_failure(self):
        _, records, failures, left_out = self.make_runs(
            lambda run: 1e6 if run.row.name == "zero1" and run.study.timed else 1.0)
        self.assertIn("run.zero1.n2.s1.none", dict(failures))


class SixteenBitsTest(unittest.TestCase):
    def test_peers_in_16_bits_without_instructions_are_left_out_of_quick_with_a_reason(self):
        has_all = find.Peers([find.Torch("python", dict.fromkeys(find.ASKED, "1") | {"torch": "2.9"})])
        with mock.patch("dpcompare.rows.lacking", return_value=""):
            for has, words, absent in ((False, [], {"torch-ddp-bf16", "torch-ddp-fp16"}),
                                       (True, [], {"torch-ddp-fp16"}),
                                       (False, ["--peers", "torch-ddp-bf16"], set())):
                with mock.patch("measuring.machine.has_bf16", return_value=has):
                    found = cli.choose_rows(cli.parse(["--quick", *words]), "", lambda *_: has_all)[1]
                self.assertEqual(set(found), absent)
                self.assertTrue(all("too long for --quick" in why for why in found.values()))

    def test_processors_that_multiply_bf16_are_known_by_their_flags(self):
        for line, has in (("flags\t\t: fpu avx2 avx512_bf16 sse", True), ("flags\t\t: fpu avx2", False),
                          ("flags\t\t: amx_bf16", True), ("flags: avx_ne_convert", True),
                          ("Features\t: fp asimd bf16", True), ("Features\t: fp asimd", False),
                          ("model name: bf16", False), ("", False)):
            self.assertEqual(machine.has_bf16(f"processor: 0\n{line}\nbugs\t: bf16\n"), has, line)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
