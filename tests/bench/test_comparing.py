#!/usr/bin/env python3
"""test_comparing.py - the arithmetic and the writing of compare, on figures made up here; and, with
programs as arguments, that every way sums right and prints what compare reads.

    test_comparing.py [WAY_DP WAY_FLOOR DPRUN LIBSLICES LINK_RELAY]
"""
import json
import os
import sys
import tempfile
import threading
import unittest
import xml.dom.minidom

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "python")]
sys.dont_write_bytecode = True

from comparing import latency, pairs, parts, peers, plot, steps, table  # noqa: E402
from comparing.ways import PLACES, Figures, Lab, Way, place_shares  # noqa: E402
from measuring import link, process  # noqa: E402
from measuring.process import (Beside, Failed, Late, adopt_orphans, children,  # noqa: E402
                               json_lines, run, run_all)

PROGRAMS = sys.argv[1:]
MIB = 1 << 20


def row(label, kind, size, place, us, samples=10, ranks=2):
    return {"label": label, "kind": kind, "bytes": size, "place": place, "median_us": us,
            "samples": samples, "ranks": ranks, "wrong": 0}


class FiguresTest(unittest.TestCase):
    def test_ratio_is_taken_in_the_placement_that_both_saw_most(self):
        figures = Figures([row("a", "ours", 4, "near", 10.0, 90),
                           row("a", "ours", 4, "far", 40.0, 5),
                           row("b", "peer", 4, "near", 20.0, 1),
                           row("b", "peer", 4, "far", 30.0, 99)])
        self.assertEqual(figures.pair("a", "b", 4), ("far", 40.0, 30.0))

    def test_without_a_shared_placement_all_count(self):
        figures = Figures([row("a", "ours", 4, "near", 10.0), row("b", "peer", 4, "far", 30.0)])
        self.assertEqual(figures.pair("a", "b", 4), ("any", 10.0, 30.0))
        self.assertIsNone(figures.pair("a", "c", 4))

    def test_median_weighs_turns_by_their_samples(self):
        figures = Figures([row("a", "ours", 4, "near", 1.0, 1), row("a", "ours", 4, "near", 9.0, 8),
                           row("a", "ours", 4, "far", 2.0, 2)])
        self.assertEqual(figures.median("a", 4), 9.0)
        self.assertEqual(figures.median("a", 4, "far"), 2.0)

    def test_best_peer_is_the_fastest_and_no_floor(self):
        figures = Figures([row("a", "ours", 4, "near", 10.0), row("p", "peer", 4, "near", 20.0),
                           row("q", "peer", 4, "near", 15.0), row("f", "floor", 4, "near", 1.0)])
        self.assertEqual(figures.best_peer("a", 4), ("q", "near", 10.0, 15.0))

    def test_siblings_are_a_placement_of_their_own(self):
        figures = Figures([row("a", "ours", 4, "siblings", 1.0, 90),
                           row("a", "ours", 4, "near", 10.0, 10),
                           row("b", "peer", 4, "near", 20.0, 50)])
        self.assertEqual(figures.pair("a", "b", 4), ("near", 10.0, 20.0))
        self.assertIn("siblings", PLACES)

    def test_every_figure_weighs_the_same_in_the_shares_of_placements(self):
        cores = os.cpu_count()
        rows = [row("a", "ours", 4, "near", 1.0, 900, 1), row("a", "ours", 4, "far", 1.0, 100, 1),
                row("a", "ours", MIB, "far", 9.0, 2, 1),
                row("b", "peer", 4, "mixed", 1.0, 7, cores + 1)]
        shares = place_shares(rows)
        self.assertEqual({place: round(share, 6) for place, share in shares.items() if share},
                         {"near": 0.45, "far": 0.55})
        self.assertEqual(table.places_text(rows),
                         "near 45 %, between 0 %, far 55 %, siblings 0 %, mixed 0 %")
        self.assertEqual((place_shares([]), table.places_text([])), ({}, ""))


class TableTest(unittest.TestCase):
    def figures(self, arena_us):
        return Figures([row(table.ARENA, "ours", 64 * MIB, "near", arena_us),
                        row(table.DIRECT, "floor", 64 * MIB, "near", 100.0),
                        row(table.ORDINARY, "ours", 64 * MIB, "near", 300.0),
                        row("OpenMPI", "peer", 64 * MIB, "near", 200.0)])

    def met(self, rows, what):
        return next(r.met for r in rows if r.what.startswith(what))

    def test_targets_are_met_up_to_their_limit_and_not_beyond(self):
        self.assertTrue(self.met(table.sizes_rows(self.figures(114.9)), "64 MiB, dp_alloc"))
        rows = table.sizes_rows(self.figures(116.0))
        self.assertFalse(self.met(rows, "64 MiB, dp_alloc"))
        self.assertFalse(self.met(rows, "64 MiB, ordinary"))

    def test_what_was_not_measured_is_neither_met_nor_missed(self):
        for rows in (table.sizes_rows(Figures([])), table.crowded_rows(Figures([])),
                     table.gradient_rows(Figures([]), {}), table.link_rows({"why": "no root"}),
                     table.link_rows({}), table.link_rows({"shape": "1 Gb/s", "bytes": 10}),
                     table.loop_rows(Figures([])), table.idle_rows(latency.empty()),
                     table.step_rows(steps.Steps("124M"))):
            self.assertTrue(rows)
            self.assertEqual({r.met for r in rows}, {None})

    def test_idling_counts_the_worst_gap_but_not_the_loop(self):
        found = {"gaps": {0.0: [900.0], 300.0: [70.0], 1e5: [80.0, 95.0, 90.0]},
                 "idle": [0.1, 0.3, 0.15]}
        self.assertEqual(latency.worst_after_idle(found), (90.0, 1e5))
        rows = table.idle_rows(found)
        self.assertTrue(self.met(rows, "4 B after idling"))
        self.assertTrue(self.met(rows, "CPU while idle"))

    def test_pairs_are_judged_by_time_where_small_and_beside_mpi_where_large(self):
        found = {"rows": pairs.read(
            "noise\n"
            "alltoall 1024 bytes, arena memory: MPI 0.95 us, libdp 2.40 us, libdp / MPI 2.53\n"
            "alltoall 1024 bytes, ordinary memory: MPI 0.95 us, libdp 3.40 us, libdp / MPI 3.58\n"
            "sendrecv 65536 bytes, ordinary memory: MPI 4.00 us, libdp 4.40 us, libdp / MPI 1.10\n"
            "sendrecv 65536 bytes, arena memory: MPI 4.00 us, libdp 2.70 us, libdp / MPI 0.68\n")}
        rows = table.pair_rows(found)
        self.assertEqual([row.met for row in rows], [True, False, False, True])
        self.assertEqual(rows[2].what, "sendrecv, 64 KiB, ordinary memory, ordered")
        self.assertEqual(rows[2].ratio, "1.10")
        self.assertIsNone(table.pair_rows({"rows": []})[0].met)

    def test_latency_lines_are_read(self):
        found = latency.empty()
        latency.read("     300.0 us idle       10.0       20.5      30.0   (1000 iterations)\n"
                     "idle CPU of a rank: 0.140 % of a core", found)
        self.assertEqual(found, {"gaps": {300.0: [20.5]}, "idle": [0.14]})

    def test_step_compares_with_the_faster_ddp_and_with_its_own_share(self):
        found = steps.Steps("124M")
        for label, ms in (("libdp 2 ranks", 1000.0), ("libdp 2 alone", 930.0),
                          ("DDP gloo, torch 1", 1400.0), ("DDP alone, torch 1", 700.0),
                          ("DDP gloo, torch 2", 1600.0), ("DDP alone, torch 2", 800.0)):
            found.note(label, ms, 4)
        found.recorder = {"no": [30.0, 32.0], "yes": [31.5, 31.3]}
        rows = table.step_rows(found)
        self.assertEqual((rows[0].met, rows[0].beside), (True, "torch DDP 50 % of 1400 ms"))
        self.assertEqual((rows[1].met, rows[1].ratio), (False, "1.40"))
        self.assertEqual((rows[-1].met, rows[-1].ours), (False, "+1.29 %"))

    def test_link_has_its_target_beside_plain_ddp_and_shows_the_hook_too(self):
        found = {"shape": "1 Gb/s", "bytes": 10, "line": 95.0, "libdp none": 100.0,
                 "libdp fp16": 50.0, "ddp gloo": 80.0, "ddp fp16": 70.0}
        rows = table.link_rows(found)
        self.assertEqual([r.met for r in rows], [True, True, True, None])
        self.assertEqual([r.ratio for r in rows[2:]], ["1.60", "1.40"])
        del found["ddp gloo"]
        self.assertEqual([r.met for r in table.link_rows(found)], [True, True, None, None])

    def test_horovod_has_rows_of_its_own_where_it_was_run(self):
        size = 124439808 * 4
        rows = [row(table.ARENA, "ours", 4, "near", 5.0),
                row("torch gloo", "peer", 4, "near", 50.0)]
        self.assertEqual(len(table.loop_rows(Figures(rows))), 1)
        rows += [row("Horovod by OpenMPI", "peer", 4, "near", 1000.0),
                 row("Horovod by gloo, cycle 0 ms", "peer", 4, "near", 100.0)]
        first, second = table.loop_rows(Figures(rows))
        self.assertNotIn("Horovod", first.beside)
        self.assertEqual((second.ratio, second.met), ("0.05", None))
        self.assertIn("Horovod by OpenMPI 1.00 ms, Horovod by gloo, cycle 0 ms 100.0 us",
                      second.beside)
        sets = Figures([row(table.ARENA, "ours", size, "near", 40e3),
                        row("Horovod by gloo", "peer", size, "near", 400e3)])
        self.assertEqual([r.ratio for r in table.gradient_rows(sets, {})][:2], ["0.10", "0.10"])

    def test_page_keeps_what_lies_outside_the_markers(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "page.md")
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"a\n{table.BEGIN}\nold\n{table.END}\nb\n")
            table.rewrite_page(path, "new \\1")
            with open(path, encoding="utf-8") as file:
                self.assertEqual(file.read(), f"a\n{table.BEGIN}\nnew \\1\n{table.END}\nb\n")
            with open(path, "w", encoding="utf-8") as file:
                file.write("no markers\n")
            self.assertRaises(ValueError, table.rewrite_page, path, "new")

    def test_data_file_has_every_row_and_the_failures(self):
        figures = self.figures(115.0)
        rows = table.sizes_rows(figures)
        sizes = table.sizes_lines(figures, [(table.ARENA, "ours")])
        text = table.data_text(["revision: x"], rows, sizes, ["step: no\nend"])
        blocks = text.split("\n\n")
        self.assertEqual([block.splitlines()[0] for block in blocks],
                         ["# revision: x", "[targets]", "[sizes]", "[failed]"])
        self.assertEqual(len(blocks[1].splitlines()), len(rows) + 2)
        self.assertTrue(all(line.count("\t") == 5 for line in blocks[1].splitlines()[1:]))
        self.assertEqual(blocks[3].splitlines()[1], "step: no end")
        self.assertIn("the program or part that", table.data_note(["x"]))
        self.assertIn("the 2 programs or parts that", table.data_note(["x", "y"]))
        self.assertNotIn("failed", table.data_note([]))

    def test_markdown_has_a_row_of_six_cells_for_each_row(self):
        text = table.markdown(table.sizes_rows(self.figures(115.0)))
        for line in text.splitlines():
            self.assertEqual(line.count("|"), 7, line)
        json.dumps(table.as_json(table.sizes_rows(self.figures(115.0))))


class PlotTest(unittest.TestCase):
    def test_chart_is_well_formed_and_stays_inside_its_frame(self):
        text = plot.chart("a < b & c", "us", [("x <1>", "ours", [(4, 0.5), (256 * MIB, 1e6)]),
                                              ("y", "peer", [(4, 7.0)]), ("absent", "floor", [])])
        document = xml.dom.minidom.parseString(text)
        circles = document.getElementsByTagName("circle")
        self.assertEqual(len(circles), 3)
        for circle in circles:
            self.assertTrue(0 < float(circle.getAttribute("cx")) < plot.WIDTH - plot.RIGHT)
            self.assertTrue(0 < float(circle.getAttribute("cy")) < plot.HEIGHT - plot.BOTTOM)
        self.assertNotIn("absent", text)


class ProcessTest(unittest.TestCase):
    def test_failure_names_command_and_last_words(self):
        with self.assertRaisesRegex(Failed, "exit 3.*gone"):
            run(["sh", "-c", "echo gone >&2; exit 3"], 20)

    def test_one_failing_rank_ends_the_others(self):
        with self.assertRaisesRegex(Failed, "exit 1"):
            run_all([["sleep", "600"], ["false"]], 60)

    def test_time_limit_ends_the_whole_group(self):
        with self.assertRaisesRegex(Failed, "no end after"):
            run(["sh", "-c", "sleep 600 & wait"], 0.2)

    def test_a_text_is_read_without_the_offset_that_its_writers_share(self):
        with tempfile.TemporaryFile("w+") as file:
            os.write(file.fileno(), b"the first words\n")
            os.lseek(file.fileno(), 3, os.SEEK_SET)
            self.assertEqual(process._text(file), "the first words\n")
            self.assertEqual(os.lseek(file.fileno(), 0, os.SEEK_CUR), 3)

    def test_what_left_the_group_is_ended_too(self):
        adopt_orphans()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "pid")
            with self.assertRaisesRegex(Failed, "no end after"):
                run(["sh", "-c", f"setsid sh -c 'echo $$ > {path}; exec sleep 600' & wait"], 3)
            with open(path, encoding="ascii") as file:
                pid = int(file.read())
            self.assertEqual(children(), [])
            self.assertRaises(ProcessLookupError, os.kill, pid, 0)

    def test_what_goes_on_beside_is_left_alone_until_it_is_stopped(self):
        adopt_orphans()
        beside = Beside(["sh", "-c", "echo up; cat; echo done"], "the cat")
        self.assertEqual(beside.line(20), "up\n")
        run(["sh", "-c", "sleep 600 & true"], 20)
        beside.check()
        self.assertEqual(children(), [beside.process.pid])
        self.assertEqual(beside.stop(), "done\n")
        self.assertEqual(children(), [])

    def test_runs_fail_by_the_name_of_what_ended_beside_them(self):
        beside = Beside(["sh", "-c", "echo broke >&2; echo up; exec sleep 600"], "the wire")
        try:
            beside.line(20)
            threading.Timer(0.1, beside.process.kill).start()
            with self.assertRaisesRegex(Failed, "the wire: ended before its time: exit -9: broke"):
                run(["sleep", "600"], 60)
        finally:
            beside.stop()
        run(["true"], 20)

    def test_what_ends_at_once_says_nothing(self):
        beside = Beside(["sh", "-c", "echo no >&2; exit 4"], "the wire")
        try:
            self.assertRaisesRegex(Failed, "the wire: exit 4: no", beside.line, 20)
        finally:
            beside.stop()

    def test_lines_of_ranks_are_read_with_horovodruns_prefix(self):
        self.assertEqual(json_lines('[0]<stdout>:{"a": 1}\n{"b": 2}\n[1]<stderr>:{"c": 3}\nx'),
                         [{"a": 1}, {"b": 2}])

    def test_a_program_that_is_not_there_fails_by_name(self):
        with self.assertRaisesRegex(Failed, "no.such.program"):
            run(["/no/such/program"], 20)


class PeersTest(unittest.TestCase):
    def test_horovod_is_built_only_where_that_was_asked_for(self):
        class Options:
            horovod, no_install = False, True

        for asked, why in ((False, "not asked for"), (True, "--no-install")):
            found, Options.horovod = peers.Peers(), asked
            with tempfile.TemporaryDirectory() as folder:
                peers._find_horovod(found, Options, folder, None)
            self.assertIn(why, found.missing["Horovod"])
            self.assertEqual((found.horovod, found.horovod_by), (None, []))

    def test_horovod_runs_by_each_exchange_at_each_cycle(self):
        found = peers.Peers()
        lab = Lab("", "", "", found)
        self.assertEqual(lab.horovods(), [])
        found.horovod = peers.Torch("/venv/bin/python", {}, "", "")
        found.horovod_by = ["mpi", "gloo"]
        ways = lab.horovods((None, 0.1), ["--x"])
        self.assertEqual([way.label for way in ways],
                         ["Horovod by OpenMPI", "Horovod by OpenMPI, cycle 0.1 ms",
                          "Horovod by gloo", "Horovod by gloo, cycle 0.1 ms"])
        self.assertNotIn("HOROVOD_CYCLE_TIME", ways[0].environment)
        self.assertEqual(ways[3].environment["HOROVOD_CYCLE_TIME"], "0.1")
        self.assertIn("--x", ways[0].command(2)[0])
        self.assertEqual(ways[2].command(2)[0][:4], ["/venv/bin/horovodrun", "--gloo", "-np", 2])

    def test_horovod_adds_to_the_time_only_where_it_is(self):
        found = peers.Peers()
        before = {name: parts.weight(name, found) for name in parts.PARTS}
        found.horovod = peers.Torch("", {}, "", "")
        more = {name for name in parts.PARTS if parts.weight(name, found) > before[name]}
        self.assertEqual(more, {"sizes", "loop", "gradients"})

    def test_build_that_fails_is_told_by_its_first_error(self):
        with tempfile.TemporaryDirectory() as folder:
            python = os.path.join(folder, "python")
            with open(python, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\necho '  error: subprocess-exited-with-error'\n"
                           "echo '  x.cc:1:2: error: no such thing' >&2\necho 'Error: more'\n"
                           "exit 1\n")
            os.chmod(python, 0o755)
            with self.assertRaisesRegex(Failed, "^pip install horovod: exit 1: "
                                        "x.cc:1:2: error: no such thing$"):
                peers._pip_install(python, ["horovod"], 20)

    def test_a_peer_that_is_missing_has_a_row_of_one_line(self):
        rows = table.missing_rows({"Horovod": "not installed:\nno compiler"})
        self.assertEqual([(r.what, r.beside, r.met) for r in rows],
                         [("beside Horovod", "not installed: no compiler", None)])


class LinkTest(unittest.TestCase):
    @unittest.skipUnless(os.geteuid() == 0, "only root can be nobody")
    def test_without_rights_it_says_so_and_makes_nothing(self):
        pid = os.fork()
        if pid == 0:
            os.setuid(65534)
            try:
                link.Link("").open()
            except Failed as error:
                os._exit(0 if "need root" in str(error) else 1)
            os._exit(2)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)

    def test_namespaces_of_the_dead_are_stale(self):
        names = ["dp-compare-7-a", "dp-compare-8-b", "dp-compare-8-c", "dp-compare-x-a", "other"]
        self.assertEqual(link.stale(names, lambda pid: pid == 7), ["dp-compare-8-b"])

    def test_frames_that_were_lost_are_told(self):
        carried = {"frames": [1, 2], "wire_bytes": [1000000, 2000000], "dropped": [0, 0],
                   "refused": [0, 0], "cpu_s": 0.5}
        self.assertRegex(link.carried_text(carried), "3 MB in 3 frames .* lost none")
        carried["dropped"], carried["refused"] = [3, 0], [0, 1]
        self.assertRegex(link.carried_text(carried), "lost 4")


class LabTest(unittest.TestCase):
    def test_a_part_whose_time_is_over_starts_nothing_more(self):
        said = []
        lab = Lab("", "", "", None, said.append)
        self.assertEqual(lab.limit(50), 50)
        lab.allow(20)
        self.assertLess(lab.limit(50), 20.1)
        self.assertEqual(lab.limit(5), 5)
        lab.allow(0)
        way = Way("late", lambda ranks: [["/no/such/program"]])
        self.assertRaises(Late, lab.measure, way, 2, [], 60)
        self.assertEqual((lab.failures, said), ([], []))

    def test_a_way_that_fails_keeps_what_it_had_printed(self):
        said = []
        lab = Lab("", "", "", None, said.append)
        line = json.dumps({"way": "x", "bytes": 4, "place": "near", "samples": 1, "wrong": 0})
        script = f"echo '{line}'; echo '{line[:20]}'; echo broke >&2; exit 3; :"
        rows = lab.measure(Way("half", lambda ranks: [["sh", "-c", script]]), 2, [], 60)
        self.assertEqual([(row["bytes"], row["label"]) for row in rows], [(4, "half")])
        self.assertEqual(lab.failures, ["half: exit 3: broke"])
        self.assertEqual(said, ["  half: exit 3: broke"])

    def test_every_part_makes_rows_and_json_of_nothing(self):
        class Options:
            preset = "tiny"

        for name, part in parts.PARTS.items():
            figures = part.empty(Options)
            self.assertTrue(all(row.met is None for row in part.rows(figures)), name)
            json.dumps(part.raw(figures))


class RelayedLink(link.Link):
    """By the relay, whatever the kernel has."""

    def _has_netem(self):
        return False


@unittest.skipUnless(len(PROGRAMS) == 5, "without programs")
@unittest.skipUnless(os.path.exists("/dev/net/tun"), "no tap devices here")
class RelayTest(unittest.TestCase):
    def setUp(self):
        self.link = RelayedLink(PROGRAMS[4])
        self.addCleanup(self.link.close)
        try:
            self.link.open()
        except Failed as error:
            self.skipTest(str(error))

    def test_link_is_no_faster_than_it_says_and_leaves_nothing_behind(self):
        self.assertIn("by a relay", self.link.shape)
        size = 4 << 20
        self.assertGreater(self.link.line_ms(size, 60), size * 8 / 1e6)
        refused = ("import socket, time\nfor _ in range(5):\n    begin = time.monotonic()\n"
                   "    try:\n        socket.create_connection(('10.77.0.2', 9), 10)\n"
                   "    except ConnectionRefusedError:\n"
                   "        print((time.monotonic() - begin) * 1e6)\n")
        times = run(["ip", "netns", "exec", self.link.names[0], "python3", "-c", refused], 60)
        self.assertEqual(len(times.split()), 5)
        self.assertGreaterEqual(min(map(float, times.split())), 2 * link.DELAY_US)
        self.link.close()
        self.assertGreater(min(self.link.carried["wire_bytes"]), size)
        for name in self.link.names:
            self.assertFalse(os.path.exists(f"/run/netns/{name}"))
        self.assertFalse(os.path.exists(self.link.folder))

    def test_runs_fail_by_the_relays_name_when_it_dies(self):
        threading.Timer(0.3, self.link.relay.process.kill).start()
        with self.assertRaisesRegex(Failed, "relay: ended before its time: exit -9"):
            self.link.run_ranks(["sleep", "600"], {}, 60)
        self.assertRaises(Failed, self.link.check)
        self.link.close()
        for name in self.link.names:
            self.assertFalse(os.path.exists(f"/run/netns/{name}"))


@unittest.skipUnless(len(PROGRAMS) == 5, "without programs")
class WaysTest(unittest.TestCase):
    def measure(self, ways, ranks, arguments):
        lab = Lab("", "", "", None)
        for way in ways:
            rows = lab.measure(way, ranks, ["seconds=0.02", "probe=0", *arguments],
                               60)
            self.assertEqual(lab.failures, [], way.label)
            self.assertTrue(rows, way.label)
            for found in rows:
                self.assertEqual((found["wrong"], found["ranks"]), (0, ranks))
                self.assertLessEqual(found["min_us"], found["median_us"])
                self.assertLessEqual(found["median_us"], found["p99_us"])

    def test_ours_and_the_direct_floor_sum_right(self):
        way_dp, way_floor, dprun = PROGRAMS[:3]
        ours = [Way(memory, lambda ranks, memory=memory: [[dprun, "--no-prefix", "-np", ranks,
                                                           way_dp, f"memory={memory}"]])
                for memory in ("arena", "ordinary")]
        floor = Way("direct", lambda ranks: [[way_floor, "variant=direct"]])
        self.measure([*ours, floor], 2, ["sizes=4,65540"])
        self.measure(ours[:1], 3, ["sizes=4,1028"])
        self.measure(ours[:1], 2, ["sizes=4", "loop=1"])
        self.measure(ours[:1], 2, ["set=3"])

    def test_cma_floor_sums_right_where_it_is_permitted(self):
        command = [PROGRAMS[1], "variant=cma"]
        try:
            self.measure([Way("cma", lambda ranks: [command])], 2, ["sizes=4,65540,1048576"])
        except AssertionError as error:
            if "not permitted" not in str(error):
                raise
            self.skipTest("process_vm_readv is not permitted here")

    def test_bad_arguments_are_refused(self):
        with self.assertRaisesRegex(Failed, "needs table"):
            run([PROGRAMS[1], "sizes=4"], 20)
        with tempfile.TemporaryDirectory() as folder:
            for words in ("sizes=4,x", "set=x", "set=0", "set=257"):
                with self.assertRaisesRegex(Failed, "needs table"):
                    run([PROGRAMS[1], f"table={folder}/t", words], 20)

    def from_python(self, words):
        """The rows of a way in Python, alone, that does nothing."""
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "way.py")
            with open(program, "w", encoding="utf-8") as file:
                file.write("import ctypes, sys, slices\nkept = []\n"
                           "def memory(size):\n    kept.append(ctypes.create_string_buffer(size))\n"
                           "    return ctypes.addressof(kept[-1])\n"
                           "sys.exit(slices.run('alone', 0, 1, memory, lambda *_: None))\n")
            peers = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers")
            return json_lines(run([sys.executable, program, f"slices={PROGRAMS[3]}",
                                   f"table={folder}/t", *words], 100,
                                  {"PYTHONPATH": peers, "PYTHONDONTWRITEBYTECODE": "1"}))

    def test_python_reaches_the_same_loop(self):
        rows = self.from_python(["sizes=8", "seconds=0.01"])
        self.assertEqual([(r["way"], r["bytes"], r["wrong"]) for r in rows], [("alone", 8, 0)])

    def test_a_size_ends_early_where_what_lies_between_takes_long(self):
        # The operation takes no time, but 16 MiB are rewritten before each: for the 20000 times
        # that fit in 0.2 s a minute.
        rows = self.from_python(["set=16", "seconds=0.2"])
        self.assertEqual(len(rows), 1)
        self.assertLess(rows[0]["samples"], 10000)
        self.assertGreaterEqual(rows[0]["samples"], 5)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
