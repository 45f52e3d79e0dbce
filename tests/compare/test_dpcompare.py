#!/usr/bin/env python3
"""test_dpcompare.py - dpcompare's arithmetic, its gates and its page, over records made up here."""
import copy
import fcntl
import os
import struct
import sys
import tempfile
import unittest
import xml.dom.minidom
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "python"))
sys.dont_write_bytecode = True

from dpcompare import bench, cli, gates, model, report, results, rows, stats, studies, views  # noqa: E402
from measuring.process import Failed  # noqa: E402

STEPS = 160
FILES = {name: "a" for name in gates.FILES}


def study(name="run", **more):
    return studies.Study(**{**dict(name=name, preset="tiny", vocab=256, batch=8, seq=32, steps=STEPS,
                                   left_out=3, lr=1e-3, warmup=2, checkpoint=True, ranks=(1, 2),
                                   seeds=2, timed=True, curves=True), **more})


def record(row, ranks=2, seed=1, ms=10.0, off=0.0, norm=1.0, files=None, name="run"):
    """A run whose loss falls from 5 to 3, moved by `off`."""
    loss = [5 - 2 * step / STEPS + off + 0.01 * seed for step in range(STEPS)]
    even = [ms] * STEPS
    steps = {"step": list(range(1, STEPS + 1)), "seconds": [ms * (k + 1) / 1e3 for k in range(STEPS)],
             "ms": [9 * ms] * 3 + even[3:], "forward_ms": [0.3 * ms] * STEPS,
             "backward_ms": [0.5 * ms] * STEPS, "optimizer_ms": [0.1 * ms] * STEPS,
             "exposed_ms": [0.1 * ms] * STEPS, "exposed_weights_ms": [0.04 * ms] * STEPS,
             "skew_ms": [0.0] * STEPS, "other_ms": [0.0] * STEPS, "transfer_ms": [0.2 * ms] * STEPS,
             "wire_bytes": [0] * STEPS, "loss": loss, "val_loss": [None] * STEPS,
             "lr": [1e-3] * STEPS, "norm": [norm] * STEPS, "clip": [1.0] * STEPS,
             "scale": [1.0] * STEPS, "skipped": [0] * (STEPS - 1) + [1]}
    plan = {"weights": 1 << 20, "gradients": 1 << 20, "moments": 2 << 20, "activations": 4 << 20,
            "library": 0,
            "total": 8 << 20, "sent_gradients": 1e6, "sent_weights": 5e5}
    return {"record": bench.RECORD, "key": {"study": name, "row": row, "ranks": ranks, "seed": seed,
                                            "link": "none"},
            "timeline": None, "ok": True, "why": "", "seconds": 1.0, "replicas": [4, 4] if ranks > 1 else None,
            "checkpoint": dict(FILES if files is None else files),
            "summary": {"format": 1, "plan": plan, "steps": steps,
                        "configuration": {"batch": 8, "seq": 32, "run_steps": STEPS, "clip": 1,
                                          "vocab": 256, "width": 64, "layers": 2,
                                          "parameters": 100000},
                        "hashes": {"initial": "i", "final": "f", "samples": "s"},
                        "ranks": {"memory_before": [1 << 20] * ranks, "memory_pss": [9 << 20] * ranks,
                                  "memory_own": [8 << 20] * ranks, "cpu_seconds": [0.1] * ranks,
                                  "wire_bytes": [0] * ranks}}}


def gate(found, name):
    return next(one for one in found if one.name == name)


class StatsTest(unittest.TestCase):
    def test_ratios_are_taken_within_a_turn(self):
        # Twice as fast in each turn, though the machine was three times slower in the second.
        self.assertEqual(stats.ratio({1: 20.0, 2: 60.0, 3: 7.0}, {1: 10.0, 2: 30.0}), (2.0, 2.0, 2.0))
        self.assertIsNone(stats.ratio({1: 1.0}, {2: 1.0}))

    def test_what_is_not_known_counts_for_nothing(self):
        self.assertEqual(stats.median([None, 1.0, float("nan"), 3.0]), 2.0)
        self.assertIsNone(stats.median([None]))
        self.assertIsNone(stats.spread([1.0, None]))
        self.assertIsNone(stats.tail_mean([]))

    def test_percentiles_lie_between_neighbours(self):
        self.assertEqual(stats.percentile([1, 2, 3, 4, 5], 0.5), 3)
        self.assertAlmostEqual(stats.percentile([0, 10], 0.95), 9.5)

    def test_bands_end_with_the_shortest_curve(self):
        self.assertEqual(stats.band([[1, 2, 3], [3, 4]]), ([2, 3], [1, 2], [3, 4]))

    def test_worst_difference_is_relative_and_says_where(self):
        off, at = stats.worst_difference([1.0, 2.0, None], [1.0, 2.5, 9.0])
        self.assertAlmostEqual(off, 0.2)
        self.assertEqual(at, 1)


class GatesTest(unittest.TestCase):
    def judge(self, row, *records):
        found = results.Results([study()], records)
        return gates.of_row(found, "run", rows.ALL[row], 2)

    def test_equal_bytes_pass_and_one_other_file_fails(self):
        self.assertEqual(gates.failures(self.judge("zero1", record("dps"), record("zero1"))), [])
        other = dict(FILES, **{"adam_v.bin": "b"})
        failed = gates.failures(self.judge("zero1", record("dps"), record("zero1", files=other)))
        self.assertEqual([one.name for one in failed], ["checkpoint's bytes"])
        self.assertIn("adam_v.bin", failed[0].text)

    def test_without_checkpoints_the_final_weights_decide(self):
        same = [record(row, files={}) for row in ("dps", "zero1")]
        self.assertTrue(gate(self.judge("zero1", *same), "final weights").passed)
        same[1]["summary"]["hashes"]["final"] = "g"
        self.assertFalse(gate(self.judge("zero1", *same), "final weights").passed)

    def test_other_samples_or_weights_or_batches_fail(self):
        for part, key in (("hashes", "initial"), ("hashes", "samples"), ("configuration", "batch"),
                          ("configuration", "run_steps")):
            other = record("zero1")
            other["summary"][part][key] = "other"
            self.assertEqual(len(gates.failures(self.judge("zero1", record("dps"), other))), 1, key)

    def test_a_norm_that_is_twice_as_large_fails_where_the_loss_is_equal(self):
        failed = gates.failures(self.judge("torch-fsdp2", record("dps"),
                                           record("torch-fsdp2", norm=2.0)))
        self.assertEqual([one.name for one in failed], ["norm of 10 steps"])

    def test_replicas_that_differ_fail(self):
        other = record("zero1")
        other["replicas"] = [3, 4]
        self.assertFalse(gate(self.judge("zero1", record("dps"), other), "replicas").passed)

    def test_curves_end_within_two_percent_and_the_spread_of_seeds(self):
        def judged(off):
            return gate(self.judge("topk", *(record(row, seed=seed, off=by) for seed in (1, 2)
                                             for row, by in (("dps", 0.0), ("topk", off)))),
                        "final loss").passed
        self.assertTrue(judged(0.0))
        self.assertTrue(judged(-1.0))  # better is no failure
        self.assertTrue(judged(0.018))  # twice the spread is 0.02
        self.assertFalse(judged(0.04))  # 1.3 %, but beyond the seeds
        self.assertFalse(judged(0.2))

    def test_a_row_that_fails_because_it_updates_rarely_says_so(self):
        def text(row, off):
            found = results.Results([study()], [record(row, off=off), record("dps")])
            return gate(gates.of_row(found, "run", rows.ALL[row], 2), "final loss").text
        self.assertIn("topk sends an element once in 100 steps in the mean", text("topk", 1.0))
        self.assertNotIn("once", text("topk", 0.0))
        self.assertNotIn("once", text("powersgd", 1.0))

    def test_a_row_that_has_hardly_begun_to_compress_gets_no_verdict(self):
        # 160 steps, of which topk compresses 116; it gets a verdict by 100 of them, PowerSGD by half.
        def verdict(row, steps, off=0.0):
            found = results.Results([study(steps=steps, warmup=steps // 10)],
                                    [record("dps"), record(row, off=off)])
            judged = gates.Judged(found, rows.OURS)
            return (gate(judged.gates[(row, 2)]["run"], "final loss").passed,
                    judged.why_not(row, 2), judged.failed(row, 2))
        self.assertEqual(verdict("topk", 160), (True, "", ""))
        self.assertFalse(verdict("topk", 160, 1.0)[0])
        for row, steps, text in (("topk", 40, "12 of 40 steps compress as the row says; a verdict "
                                  "needs 100, as an element waits so many in the mean"),
                                 ("topk", 8, "0 of 8 steps"),
                                 ("powersgd", 40, "16 of 40 steps .* needs 20, half of the run")):
            for off in (0.0, 1.0):  # neither holds nor fails
                passed, why, failed = verdict(row, steps, off)
                self.assertIsNone(passed)
                self.assertRegex(why, text)
                self.assertEqual(failed, "")
        self.assertTrue(verdict("powersgd", 60)[0])
        self.assertTrue(verdict("dps-fp16-wire", 8)[0])  # it does so from the first step

    def test_a_row_whose_loss_was_not_compared_has_no_speed(self):
        timed, curve = study("speed", curves=False), study("curve", timed=False)
        found = results.Results([timed, curve], [record("dps", name="speed"),
                                                 record("powersgd", name="speed")])
        judged = gates.Judged(found, rows.OURS)
        self.assertIn("no run whose loss could be compared", judged.why_not("powersgd", 2))
        self.assertEqual(judged.why_not("dps", 2), "")

    def test_a_grid_without_the_reference_gives_no_verdict(self):
        short = study("bytes", timed=False, curves=False)
        found = results.Results([short, study(), study("large-0.01", grid=True)], [
            record("lamb", name="bytes"), record("lamb", name="large-0.01")])
        self.assertIn("no run to compare with", gates.Judged(found, rows.OURS).why_not("lamb", 2))

    def test_a_grid_that_was_not_run_whole_gives_no_verdict(self):
        grid = [study(f"large-{rate:g}", lr=rate, grid=True, timed=False, curves=False)
                for rate in (0.01, 0.03)]
        found = results.Results([study(), *grid], [
            record("dps"), record("lamb"), record("dps", name="large-0.01"),
            record("lamb", name="large-0.01"), record("dps", name="large-0.03")])
        self.assertIn("1 of 2 rates were run", gates.Judged(found, rows.OURS).why_not("lamb", 2))

    def test_an_optimizer_is_compared_with_its_best_rate(self):
        grid = [study(f"large-{rate:g}", lr=rate, grid=True, timed=False, curves=False)
                for rate in (0.01, 0.03, 0.1)]
        def judged(ours):
            records = [record(row, seed=seed, off=by, name=one.name) for seed in (1, 2)
                       for row, offs in (("dps", (0.0, 0.5, 1.0)), ("lamb", ours))
                       for one, by in zip(grid, offs)]
            found = results.Results([study(), *grid], [*records, record("dps"), record("lamb")])
            return gates.Judged(found, rows.OURS)
        good = judged((0.7, 0.005, 0.9))
        self.assertEqual(good.why_not("lamb", 2), "")
        text = good.gates[("lamb", 2)]["large"][0].text
        self.assertIn("rate 0.03, dps 0.01", text)
        self.assertIn("dps is best at the grid's edge", text)
        self.assertNotIn("lamb is best", text)
        self.assertIn("best of the grid", judged((0.7, 0.3, 0.9)).why_not("lamb", 2))

    def test_hybrid_has_the_bytes_of_dps_on_as_many_nodes_only(self):
        other = dict(FILES, **{"weights.bin": "b"})
        for nodes, failed in ((1, []), (2, ["checkpoint's bytes"])):
            found = results.Results([study(nodes=nodes)],
                                    [record("dps", 4), record("hybrid", 4, files=other)])
            self.assertEqual([one.name for one in gates.failures(gates.of_row(
                found, "run", rows.ALL["hybrid"], 4))], failed)

    def test_a_gate_over_a_link_takes_the_speed_over_that_link_alone(self):
        slow = record("zero1", files=dict(FILES, **{"weights.bin": "b"}))
        base = record("dps")
        for one in (slow, base):
            one["key"]["link"] = "1g"
        found = results.Results([study()], [record("dps"), record("zero1"), base, slow])
        judged = gates.Judged(found, rows.OURS)
        self.assertEqual(judged.why_not("zero1", 2), "")
        self.assertIn("run over 1g", judged.why_not("zero1", 2, "1g"))

    def test_a_failed_gate_takes_the_speed_and_the_reason_stays(self):
        other = record("zero1", files=dict(FILES, **{"weights.bin": "b"}))
        found = results.Results([study()], [record("dps"), other])
        judged = gates.Judged(found, rows.OURS)
        self.assertIn("weights.bin", judged.why_not("zero1", 2))
        self.assertEqual(judged.why_not("dps", 2), "")


class ResultsTest(unittest.TestCase):
    def setUp(self):
        self.found = results.Results([study()], [record("dps")])
        self.record = self.found.seeds("run", "dps", 2)[1]

    def test_first_steps_are_left_out_of_medians(self):
        self.assertEqual(self.found.step_ms(self.record), 10.0)
        self.assertAlmostEqual(self.found.tokens_per_s(self.record), 8 * 32 / 10e-3)

    def test_exposed_time_is_told_apart(self):
        self.assertAlmostEqual(self.found.phase_ms(self.record, "exposed_gradients_ms"), 0.6)
        self.assertAlmostEqual(self.found.exposed_ms(self.record), 1.0)

    def test_memory_is_the_growth_of_the_largest_rank(self):
        self.record["summary"]["ranks"]["memory_pss"][1] = 11 << 20
        self.assertEqual(self.found.pss_mib(self.record), 10.0)
        self.assertEqual(self.found.planned_mib(self.record), 8.0)

    def test_steps_before_gradients_are_compressed_are_not_timed(self):
        one = study(steps=60, warmup=6)
        self.assertEqual(one.untimed(rows.ALL["dps"]), 3)
        self.assertEqual(one.untimed(rows.ALL["powersgd"]), 26)
        self.assertEqual(one.untimed(rows.ALL["topk"]), 30)
        self.assertEqual(one.flags(rows.ALL["topk"])[2:], ["--compress-start", 26,
                                                           "--compress-warmup", 4])
        quick = study(steps=8, curves=False)  # too short for curves: compressed from the first step
        self.assertEqual(quick.untimed(rows.ALL["topk"]), 3)
        self.assertNotIn("--compress-start", quick.flags(rows.ALL["topk"]))

    def test_waits_come_from_the_timeline_where_there_is_one(self):
        self.assertEqual(self.found.waits(self.record).keys(), {"gradients", "weights", "late ranks"})
        self.record["timeline"] = {"waits_ms": {"allreduce": 2.0}}
        self.assertEqual(self.found.waits(self.record), {"allreduce": 2.0})

    def test_flops_are_the_models(self):
        rate = 8 * 32 / 10e-3
        self.assertAlmostEqual(self.found.gflops(self.record),
                               1e-9 * rate * (6e5 + 12 * 2 * 64 * 32))

    def test_skips_and_utilisation(self):
        self.assertEqual(self.found.skips(self.record), 1)
        self.assertAlmostEqual(self.found.utilisation(self.record), 0.1 / (10e-3 * STEPS))


class ModelTest(unittest.TestCase):
    def parts(self, dense, ranks=2):
        return model.Parts(470.0, 930.0, 250.0, dense, 5e8, 0.31, ranks, 12)

    def test_without_communication_only_the_update_is_shared(self):
        self.assertAlmostEqual(model.step_ms("dps", self.parts(0.0)), 1650.0)
        self.assertAlmostEqual(model.step_ms("zero1", self.parts(0.0)), 1525.0)

    def test_a_server_moves_n_times_the_model(self):
        slow = self.parts(1e5, 4)
        self.assertAlmostEqual(model.step_ms("sps", slow) / model.step_ms("dps", slow), 4.0, 1)

    def test_a_third_gather_costs_half_as_much_again(self):
        slow = self.parts(1e6)
        ratio = model.step_ms("zero3", slow) / model.step_ms("zero1", slow)
        self.assertTrue(1.3 < ratio < 1.5, ratio)

    def test_memory_is_off_where_the_librarys_buffers_do_not_explain_it(self):
        parts = {"weights": 10.0, "activations": 10.0, "library": 80.0}
        self.assertEqual(model.off_plan(60.0, parts), 0.0)
        self.assertAlmostEqual(model.off_plan(10.0, parts), -0.5)
        self.assertAlmostEqual(model.off_plan(150.0, parts), 0.5)

    def test_reach_does_not_depend_on_the_models_size(self):
        # 6 * 1000 operations a weight at 1e9 a second; 2 * 1/2 * 4 bytes of it at 1e6 a second.
        self.assertAlmostEqual(model.reach_of(1000, 1e9, 1e6, 2, 4), 6e-6 / 4e-6)

    def test_a_crossing_is_where_two_lines_meet(self):
        self.assertAlmostEqual(model.crossing(lambda x: 10 / x, lambda x: 5.0, 0.1, 100), 2.0, 6)
        self.assertIsNone(model.crossing(lambda x: 10 / x, lambda x: -1.0, 0.1, 100))

    def test_a_quarter_is_no_surprise_and_more_is(self):
        self.assertFalse(model.is_surprise(124.0, 100.0))
        self.assertTrue(model.is_surprise(126.0, 100.0))
        self.assertTrue(model.is_surprise(74.0, 100.0))


class StudiesTest(unittest.TestCase):
    def options(self, *words):
        return cli.parse(["--quick", *words])

    def test_a_link_needs_root_and_two_ranks(self):
        asked = self.options("--links", "1g")
        with mock.patch("os.geteuid", return_value=1000):
            with self.assertRaisesRegex(Failed, "--links 1g: .* needs root; leave --links out"):
                cli.check_links(asked)
            cli.check_links(self.options())
        with mock.patch("os.geteuid", return_value=0):
            cli.check_links(asked)
            with self.assertRaisesRegex(Failed, "--ranks has no 2"):
                cli.check_links(self.options("--links", "1g", "--ranks", "4"))

    def test_a_batch_that_does_not_divide_is_refused(self):
        with self.assertRaisesRegex(Failed, "--ranks 3: the global batch of 16 .* does not divide"):
            studies.make(self.options("--ranks", "1,3"))

    def test_what_differs_between_nodes_alone_is_timed_over_links_and_judged_between_nodes(self):
        row = rows.ALL["dps-fp16-wire"]
        whole = studies.make(cli.parse(["--links", "1g"]))
        asked = {(run.study.name, run.link) for run in studies.runs(whole, [rows.ALL["dps"], row])
                 if run.row == row}
        self.assertEqual(asked, {("bytes", "none"), ("curve", "none"), ("speed", "1g")})
        maker = bench.Bench.__new__(bench.Bench)
        maker.options, maker.build, maker.work = cli.parse([]), "/b", "/w"
        maker.initial, maker.data = lambda one, seed: "init", {"curve": "text"}
        curve = next(one for one in whole if one.name == "curve")
        (command,), _ = maker._ours(studies.Run(curve, row, 2, 1, "none"), "s", "o")
        self.assertEqual(command[command.index("--pretend-nodes") + 1], 2)
        self.assertEqual(command[len(command) - command[::-1].index("--wire")], "fp16")

    def test_turns_alternate_in_direction(self):
        found = studies.runs(studies.make(self.options("--ranks", "2")), rows.OURS[:3])
        first, second = ([run.row.name for run in found if run.study.name == "run"
                          and run.seed == seed] for seed in (1, 2))
        self.assertEqual(first, second[::-1])
        self.assertEqual(first, ["single", "dps", "coordinator"])

    def test_one_process_is_run_once_beside_any_numbers_of_ranks(self):
        found = studies.runs(studies.make(self.options("--ranks", "2,4", "--seeds", "1")),
                             rows.OURS[:2])
        self.assertEqual([(run.row.name, run.ranks) for run in found if run.study.name == "run"],
                         [("single", 1), ("dps", 2), ("dps", 4)])

    def test_a_grid_is_run_where_an_optimizer_is_to_be_tuned(self):
        def names(*chosen):
            found = studies.runs(studies.make(self.options()), [rows.ALL[name] for name in chosen])
            return {run.study.name for run in found if run.study.grid}
        self.assertEqual(names("single", "dps", "zero1"), set())
        self.assertEqual(len(names("dps", "lamb")), len(studies.RATES))

    def test_unknown_rows_are_refused_with_the_nearest(self):
        with self.assertRaisesRegex(Failed, "zerro1: no such row, did you mean zero1"):
            rows.choose("dps,zerro1", rows.OURS, "--rows")

    def test_what_an_older_gpt2_lacks_is_a_reason(self):
        text = "  --shard NAME   none, optimizer [none]\n"
        self.assertEqual(rows.lacking(rows.ALL["zero1"], text), "")
        self.assertEqual(rows.lacking(rows.ALL["zero3"], text), "this gpt2 has no --shard weights")
        self.assertEqual(rows.lacking(rows.ALL["lamb"], text), "this gpt2 has no --optimizer")

    def test_data_are_the_same_everywhere(self):
        self.assertEqual(studies.text_of(3000), studies.text_of(9000)[:3000])
        data = studies.tokens_of(100, 50)
        self.assertEqual(struct.unpack("<3i", data[:12]), (20240520, 1, 50))
        self.assertTrue(all(token < 100 for token in struct.unpack("<50H", data[1024:])))

    def test_learning_rates_rise_and_fall_as_gpt2s(self):
        one = study(lr=1.0, warmup=2, steps=12)
        rates = [bench.learning_rate(one, step) for step in range(12)]
        self.assertEqual(rates[:3], [0.5, 1.0, 1.0])
        self.assertAlmostEqual(rates[7], 0.55)
        self.assertGreater(rates[11], 0.1)


    def test_a_first_turn_of_all_studies_comes_before_a_second_one(self):
        found = studies.runs(studies.make(self.options()), rows.OURS)
        self.assertEqual([run.seed for run in found], sorted(run.seed for run in found))
        self.assertEqual({run.study.name for run in found if run.seed == 1},
                         {one.name for one in studies.make(self.options())})


class FolderTest(unittest.TestCase):
    def test_another_configuration_or_another_peer_is_refused(self):
        wanted = {"threads": 1, "peers": {"ddp": "torch 1"}}
        with tempfile.TemporaryDirectory() as folder:
            options = cli.parse(["--out", folder])
            cli.check_folder(options, copy.deepcopy(wanted))
            cli.check_folder(options, copy.deepcopy(wanted))
            cli.check_folder(options, {"threads": 1, "peers": {"fsdp2": "torch 1"}})
            with self.assertRaisesRegex(Failed, "measured with other threads"):
                cli.check_folder(options, dict(wanted, threads=2))
            with self.assertRaisesRegex(Failed, "measured with torch 1 for ddp, this is torch 2"):
                cli.check_folder(options, dict(wanted, peers={"ddp": "torch 2"}))

    def test_a_folder_of_somebody_else_is_left_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "thesis.tex"), "w", encoding="utf-8"):
                pass
            with self.assertRaisesRegex(Failed, "no folder of dpcompare"):
                cli.check_folder(cli.parse(["--out", folder]), {"peers": {}})


    def test_two_comparisons_do_not_share_a_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            with bench.lock_results(folder):
                with self.assertRaisesRegex(Failed, "another dpcompare writes there"):
                    bench.lock_results(folder)
            bench.lock_results(folder).close()

    def test_what_a_killed_run_left_is_removed_and_what_is_in_use_is_not(self):
        with tempfile.TemporaryDirectory() as base:
            for name in (bench.WORK + "1", bench.WORK + "2", bench.WORK + "other"):
                os.mkdir(os.path.join(base, name))
                with open(os.path.join(base, name, "lock"), "w", encoding="ascii"):
                    pass
            with open(os.path.join(base, bench.WORK + "2", "lock"), "r+", encoding="ascii") as used:
                fcntl.flock(used, fcntl.LOCK_EX)
                path, lock = bench.work_folder(base)
            with lock:
                self.assertEqual(sorted(os.listdir(base)), sorted(
                    [bench.WORK + "2", bench.WORK + "other", os.path.basename(path)]))


class TimelineTest(unittest.TestCase):
    def test_waits_are_means_of_rank_0s_steps_by_collective(self):
        def cell(rank, allgather, skew):
            return {"rank_index": rank, "exposed_by_collective_ms": {"reduce_scatter": 1.0, **(
                {"allgather": allgather} if allgather else {})},
                "parts_ms": {"skew": skew, "pack_unpack": 0.0, "negotiation": 0.5,
                             "unattributed": 0.0}}
        found = bench.timeline_of({"has_steps": True, "dropped": 0, "hidden": 0.5,
                                   "communication_ms": 4.0,
                                   "steps": [cell(0, 4.0, 1.0), cell(0, 0, 3.0), cell(1, 9.0, 9.0)]})
        self.assertEqual(found["waits_ms"], {"reduce-scatter": 1.0, "allgather": 2.0,
                                             "late ranks": 2.0, "packing": 0.0, "agreeing": 0.5,
                                             "waking up": 0.0})
        self.assertIsNone(bench.timeline_of({"has_steps": False, "steps": []}))


class PageTest(unittest.TestCase):
    def setUp(self):
        bad = record("topk", off=1.0)
        records = [record("dps"), record("dps", 1), record("single", 1, ms=18.0), bad,
                   record("zero1", ms=8.0), record("torch-ddp", ms=20.0)]
        self.rows = [rows.ALL[name] for name in ("single", "dps", "zero1", "topk", "lamb",
                                                 "torch-ddp")]
        records[-2]["timeline"] = {"waits_ms": {"reduce-scatter": 0.25, "allgather": 0.5}}
        found = results.Results([study()], records)
        self.view = views.View(found, self.rows, gates.Judged(found, self.rows), {})
        self.view.ranks = 2
        self.report = report.Report(self.view, {"processor": "P < 2 & more"},
                                    {"lamb": "this gpt2 has no --optimizer"}, "dpcompare", [])

    def test_a_row_that_failed_its_gate_has_no_speed(self):
        line, kind = self.report.row_line(rows.ALL["topk"])
        self.assertEqual(kind, "failed")
        self.assertIn("no speed", line)
        found = self.report.as_json()["rows"]["topk"]
        self.assertNotIn("tokens_per_s", found)
        self.assertIn("final loss", found["failed_gate"])

    def test_a_gate_that_failed_is_told_of_a_row_that_was_not_timed_as_well(self):
        timed, curve = study("speed", curves=False), study("curve", timed=False)
        found = results.Results([timed, curve], [
            record("dps", name="speed"), record("dps", name="curve"), record("dps", 2, 2, name="curve"),
            record("topk", off=1.0, name="curve"), record("topk", 2, 2, off=1.0, name="curve")])
        view = views.View(found, self.rows, gates.Judged(found, self.rows), {})
        view.ranks = 2
        page = report.Report(view, {"processor": "P"}, {}, "dpcompare", [])
        line, kind = page.row_line(rows.ALL["topk"])
        self.assertEqual(kind, "failed")
        self.assertIn("final loss", line[1])
        self.assertIn("| topk | fails | no speed |", page.markdown())

    def test_a_row_that_was_not_run_says_why(self):
        line, kind = self.report.row_line(rows.ALL["lamb"])
        self.assertEqual(kind, "absent")
        self.assertIn("this gpt2 has no --optimizer", line[1])

    def test_a_row_without_a_verdict_is_neither_failed_nor_fast(self):
        short = study(steps=40, warmup=4)
        found = results.Results([short], [record("dps"), record("topk"), record("topk", 2, 2)])
        view = views.View(found, self.rows, gates.Judged(found, self.rows), {})
        view.ranks = 2
        page = report.Report(view, {"processor": "P"}, {}, "dpcompare", [],
                             [("run.lamb.n2.s2.none", "it should take 9 s")])
        line, kind = page.row_line(rows.ALL["topk"])
        self.assertEqual((kind, line[2]), ("unjudged", "no speed"))
        self.assertIn("12 of 40 steps", line[1])
        self.assertIn("| topk | no verdict | no speed |", page.markdown())
        self.assertIn("no verdict with 2", page.gates_table())
        self.assertIn("of topk there is no verdict", " ".join(view.findings()))
        data = page.as_json()["rows"]["topk"]
        self.assertIn("12 of 40 steps", data["no_verdict"])
        self.assertEqual(data["failed_gate"], "")
        self.assertNotIn("tokens_per_s", data)
        self.assertIn("run.lamb.n2.s2.none: it should take 9 s", page.page([]))

    def test_a_row_without_time_for_its_verdict_does_not_hold(self):
        short = study("bytes", timed=False, curves=False)
        found = results.Results([short, study()], [
            record("dps"), record("topk", name="bytes"), record("dps", name="bytes")])
        view = views.View(found, self.rows, gates.Judged(found, self.rows), {})
        view.ranks = 2
        page = report.Report(view, {"processor": "P"}, {"topk": "left out: the time"}, "d", [])
        line, kind = page.row_line(rows.ALL["topk"])
        self.assertEqual((kind, line[2]), ("unjudged", "no speed"))
        self.assertIn("no run whose loss could be compared", line[1])
        self.assertIn("left out: the time", line[1])
        self.assertIn("Of 2 rows that were run, 1 hold", " ".join(view.findings()))
        self.assertIn("not run: no run", page.row_line(rows.ALL["single"])[0][1])

    def test_ours_stand_beside_what_they_stand_for(self):
        self.assertIn("2.00", self.report.beside_table())
        found = self.report.as_json()["beside"]
        self.assertEqual([(one["ours"], one["theirs"]) for one in found], [("dps", "torch-ddp")])

    def _over_link(self):
        """A view with a link, over which topk fails its gate and PowerSGD is faster than dps."""
        there = [record("dps", ms=40.0), record("powersgd", ms=10.0), record("topk", off=1.0)]
        for one in there:
            one["key"]["link"] = "1g"
        records = [record("dps"), record("powersgd", ms=12.5), record("topk", off=1.0), *there]
        asked = [rows.ALL[name] for name in ("dps", "topk", "powersgd")]
        found = results.Results([study(links=("none", "1g"))], records)
        view = views.View(found, asked, gates.Judged(found, asked), {
            "1g": {"shape": "1 Gb/s", "gbit_per_s": 0.94, "emulated": False}})
        view.ranks = 2
        return view

    def test_the_page_says_where_fewer_bytes_win_and_where_not(self):
        found = " ".join(self._over_link().findings())
        self.assertIn("Over 1g, where plain TCP carried 0.94 Gb/s, speeds over dps' are powersgd 4.00",
                      found)
        self.assertIn("cannot win on one node, where nothing is sent over a link: powersgd at 0.80",
                      found)
        self.assertNotIn("topk at", found)

    def test_a_row_that_fails_its_gate_is_told_among_those_over_a_link(self):
        text = report.Report(self._over_link(), {"processor": "P"}, {}, "dpcompare", []).links_table()
        line = next(line for line in text.split("<tr") if ">topk<" in line)
        self.assertIn("no speed", line)
        self.assertIn("final loss", line)
        self.assertIn(">4.00<", text)

    def test_waits_are_shown_by_collective(self):
        found = self.report.as_json()["rows"]["zero1"]["waits_ms"]
        self.assertEqual(found, {"reduce-scatter": 0.25, "allgather": 0.5})
        self.assertIn("reduce-scatter", self.report.waits_table())

    def test_the_page_begins_with_what_was_found(self):
        found = " ".join(self.view.findings())
        self.assertIn("zero1 is the fastest, at 1.25 times dps", found)
        self.assertIn("topk does not", found)
        self.assertIn("dps is 2.0 times as fast as torch DDP", found)
        self.assertIn("1.25 times dps", self.report.page([]))

    def test_ratios_are_to_dps(self):
        found = self.report.as_json()["rows"]
        self.assertAlmostEqual(found["zero1"]["over_dps"], 1.25)
        self.assertAlmostEqual(found["dps"]["over_dps"], 1.0)

    def test_the_page_is_whole_escapes_and_wants_no_network(self):
        page = self.report.page([("step", "<?xml?><svg>x</svg>", "a < b")])
        self.assertIn("P &lt; 2 &amp; more", page)
        self.assertIn("a &lt; b", page)
        self.assertTrue(page.endswith("</body></html>\n"))
        for word in ("<script", "<link", "src=", "@import"):
            self.assertNotIn(word, page)

    def test_pictures_are_drawn_of_all_that_is_there(self):
        try:
            from dpcompare import figures
        except ImportError as error:
            self.skipTest(str(error))
        with tempfile.TemporaryDirectory() as folder:
            drawn = figures.draw(self.view, folder)
            names = [name for name, _, _ in drawn]
            self.assertLessEqual({"speed", "step", "memory", "loss", "cdf", "norm", "links", "papers"},
                                 set(names))
            for _, text, _ in drawn:
                xml.dom.minidom.parseString(text)

    def test_labels_of_points_at_one_place_lie_apart(self):
        try:
            from dpcompare import figures
        except ImportError as error:
            self.skipTest(str(error))
        found = figures.labels_apart([("a", 4.0, 10.0), ("b", 4.1, 10.1), ("c", 1.0, 10.0),
                                      ("d", 4.0, 2.0)])
        heights = {name: height for name, _, _, height in found}
        self.assertEqual((heights["c"], heights["d"]), (10.0, 2.0))  # nobody is near
        self.assertAlmostEqual(heights["b"] - heights["a"], 0.035 * 10.1)
        self.assertEqual(figures.labels_apart([]), [])

    def test_lines_over_ranks_begin_at_one_process_where_that_is_the_same_arithmetic(self):
        found = dict(self.view.scaling())
        rate = {ms: 1e3 * 8 * 32 / ms for ms in (8.0, 10.0, 18.0, 20.0)}
        self.assertEqual(found["zero1"], [(1, rate[18.0]), (2, rate[8.0])])
        self.assertEqual(found["dps"], [(1, rate[10.0]), (2, rate[10.0])])  # its own run of one rank
        self.assertEqual(found["torch-ddp"], [(2, rate[20.0])])  # no torch alone
        self.assertNotIn("topk", found)

    def test_dps_is_not_compared_with_itself(self):
        asked = [rows.ALL[name] for name in ("dps", "zero1")]
        found = results.Results([study()], [record("dps"), record("zero1", ms=20.0)])
        view = views.View(found, asked, gates.Judged(found, asked), {})
        view.ranks = 2
        self.assertIn("None of ours is faster than dps; zero1 is the slowest, at 0.50",
                      " ".join(view.findings()))
        text = self.view._memory_finding()
        self.assertEqual(text, "dps needs the least memory, 8 MiB a rank")

    def test_what_a_row_that_failed_saves_is_not_among_the_findings(self):
        self.assertNotIn("topk pays", " ".join(self.view.findings()))
        self.assertNotIn("topk", " ".join(text for text, *_ in self.view.crossings()))

    def test_the_table_for_a_page_has_a_line_for_each_row(self):
        lines = self.report.markdown().splitlines()
        self.assertEqual(len(lines), 2 + len(self.rows))
        self.assertTrue(all(line.count("|") == 9 and "<" not in line for line in lines), lines)
        self.assertIn("| zero1 | holds |", lines[4])
        self.assertIn("| topk | fails | no speed |", lines[5])
        self.assertIn("| lamb | not run |", lines[6])

    def test_data_have_a_line_for_each_step(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "runs.csv")
            report.write_csv(path, self.view.results)
            with open(path, encoding="utf-8") as file:
                lines = file.read().splitlines()
            self.assertEqual(len(lines), 1 + 6 * STEPS)
            self.assertEqual(lines[0].split(",")[:6], ["study", "row", "ranks", "link", "seed", "step"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
