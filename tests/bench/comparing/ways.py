"""ways.py - the ways of summing a tensor that are compared, and the figures they gave."""
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field

from measuring.process import Failed, Late, json_lines, rank_environments, run, run_all

OPENMPI = ["mpiexec.openmpi", "--allow-run-as-root"]
RING = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm",
        "5", "--mca", "coll_tuned_allreduce_algorithm_segmentsize", "262144"]
UCX = ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any",
       "-x", "UCX_TLS=posix,cma,self"]
YIELD = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
FLAGS = ["-std=gnu17", "-D_GNU_SOURCE", "-O3", "-march=native", "-I.", "-Iinclude"]
HOROVOD = "Horovod"  # what the labels of its ways begin with
PLACES = ["near", "between", "far", "siblings", "mixed"]


@dataclass
class Way:
    """How a way is started; ours and the floors are told from the peers."""

    label: str
    command: object  # ranks -> list of commands, one for each process we start
    kind: str = "peer"  # or ours, floor
    environment: dict = field(default_factory=dict)
    ranks_ourselves: bool = False  # each command is one rank, in torchrun's environment


class Lab:
    """Compiles the programs and knows how each way is started."""

    def __init__(self, root, build, folder, peers, say=lambda text: None):
        self.root, self.build, self.folder, self.peers = root, build, folder, peers
        self.say = say
        self.failures = []
        self.until = None

    def allow(self, seconds):
        """From now on programs get this long, all together."""
        self.until = time.monotonic() + seconds

    def limit(self, most):
        """Seconds for the next program: most, or what is left. Raises Late where nothing is."""
        if self.until is None:
            return most
        left = self.until - time.monotonic()
        if left < 1:
            raise Late("the time was over")
        return min(most, left)

    def note(self, label, error):
        """Keeps a failure for the end, and tells it now."""
        text = f"{label}: {getattr(error, 'reason', error)}"
        self.failures.append(text)
        self.say(f"  {text}")

    def path(self, name):
        return os.path.join(self.folder, name)

    def compile(self):
        peers = os.path.join("tests", "bench", "peers")
        loop = os.path.join(peers, "slices.c")
        jobs = [["gcc", *FLAGS, f"{peers}/way_floor.c", loop, "-o", self.path("way_floor")],
                ["gcc", *FLAGS, f"{peers}/way_dp.c", loop, "-o", self.path("way_dp"),
                 f"-L{self.build}", "-ldp", f"-Wl,-rpath,{self.build}"],
                ["gcc", *FLAGS, "-fPIC", "-shared", loop, "-o", self.path("libslices.so")],
                ["gcc", *FLAGS, f"{peers}/link_relay.c", f"{peers}/link_wire.c", "-o",
                 self.path("link_relay")]]
        for job in jobs:
            run(job, 120, cwd=self.root)
        for name in ("openmpi", "mpich"):
            if not getattr(self.peers, name):
                continue
            try:
                run([f"mpicc.{name}", *FLAGS, f"{peers}/way_mpi.c", loop, "-o",
                     self.path(f"way_{name}")], 120, cwd=self.root)
            except Failed as error:
                setattr(self.peers, name, False)
                self.note(name, error)
        if self.peers.openmpi:
            run(["mpicc.openmpi", *FLAGS, f"{peers}/pair_mpi.c", loop, "-o",
                 self.path("pair_mpi"), f"-L{self.build}", "-ldp", f"-Wl,-rpath,{self.build}"],
                120, cwd=self.root)

    def ours(self, memory, label=None, settings=(), arguments=()):
        dprun = [os.path.join(self.build, "dprun"), "--no-prefix", *settings]
        return Way(label or f"libdp, {memory} memory",
                   lambda ranks: [dprun + ["-np", ranks, self.path("way_dp"), f"memory={memory}",
                                           *arguments]], "ours")

    def floor(self, variant):
        return Way(f"floor, {variant}",
                   lambda ranks: [[self.path("way_floor"), f"variant={variant}"]], "floor")

    def mpi(self, name, label, options=(), arguments=()):
        start = OPENMPI if name == "openmpi" else ["mpiexec.mpich"]
        bind = ["--bind-to", "core"] if name == "openmpi" else ["-bind-to", "core"]
        return Way(label, lambda ranks: [[*start, "-n", ranks,
                                          *([] if ranks > (os.cpu_count() or 1) else bind),
                                          *options, self.path(f"way_{name}"), *arguments]])

    def torch(self, torch, label, variant="flat"):
        command = self._torch_command(torch, variant)
        environment = dict(torch.environment, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
        return Way(label, lambda ranks: [command] * ranks, "peer", environment, True)

    def horovod(self, exchange, cycle_ms=None, options=()):
        """Horovod by gloo or mpi; tensors are submitted by name, then awaited. cycle_ms: how often
        its thread looks for some; None: its default of 1. options: those of MPI."""
        torch = self.peers.horovod
        command = [*self._torch_command(torch, "async"), "through=horovod"]
        environment = dict(torch.environment, OMP_NUM_THREADS="1", HOROVOD_CONTROLLER=exchange,
                           HOROVOD_CPU_OPERATIONS=exchange)
        label = f"{HOROVOD} by {'OpenMPI' if exchange == 'mpi' else exchange}"
        if cycle_ms is not None:
            environment["HOROVOD_CYCLE_TIME"] = f"{cycle_ms:g}"
            label += f", cycle {cycle_ms:g} ms"
        if exchange == "mpi":  # two threads a rank, both of which poll
            return Way(label, lambda ranks: [[*OPENMPI, *YIELD, *options, "-n", ranks, *command]],
                       "peer", environment)
        starter = os.path.join(os.path.dirname(torch.python), "horovodrun")
        return Way(label, lambda ranks: [[starter, "--gloo", "-np", ranks, *command]], "peer",
                   environment)

    def horovods(self, cycles=(None,), options=()):
        """Horovod by all that it was built for, at each of these cycles; none where it is not."""
        return [self.horovod(exchange, cycle, options) for exchange in self.peers.horovod_by
                for cycle in cycles]

    def _torch_command(self, torch, variant):
        return [torch.python, os.path.join(self.root, "tests/bench/peers/way_torch.py"),
                f"slices={self.path('libslices.so')}", f"variant={variant}"]

    def all(self, quick):
        """The ways of the size sweep."""
        ways = [self.ours("arena"), self.ours("ordinary"), self.floor("direct"), self.floor("cma")]
        if self.peers.openmpi:
            ways.append(self.mpi("openmpi", "OpenMPI"))
            ways.append(self.mpi("openmpi", "OpenMPI, segmented ring", RING))
            if not quick:
                ways.append(self.mpi("openmpi", "OpenMPI, pml ucx", UCX))
        if self.peers.mpich:
            ways.append(self.mpi("mpich", "MPICH"))
        if self.peers.torches:
            ways.append(self.torch(self.peers.torches[0], "torch gloo"))
        return ways if quick else ways + self.horovods()

    def measure(self, way, ranks, arguments, timeout):
        """The rows of one turn. When it fails that is noted, and they are what it had printed."""
        limit = self.limit(timeout)
        handle, table = tempfile.mkstemp(prefix="compare-", dir=shared_folder())
        os.close(handle)
        commands = [[*command, f"table={table}", *arguments] for command in way.command(ranks)]
        environments = [way.environment] * len(commands)
        if way.ranks_ourselves:
            environments = rank_environments(ranks, way.environment)
        try:
            rows = json_lines(run_all(commands, limit, environments)[0])
            if not rows:
                self.note(way.label, "it printed no figures")
        except Failed as error:
            self.note(way.label, error)
            rows = json_lines(error.output)
        finally:
            os.unlink(table)
        for row in rows:
            row.update(label=way.label, kind=way.kind, ranks=ranks)
            if row["wrong"] > 0:
                self.note(way.label, f"{row['wrong']} wrong results at {row['bytes']} bytes")
        return rows


def shared_folder():
    """Where files never reach a disk; None: nowhere."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _weighted_median(pairs):
    pairs = sorted(pairs)
    half, seen = sum(weight for _, weight in pairs) / 2, 0
    for value, weight in pairs:
        seen += weight
        if seen >= half:
            return value
    return pairs[-1][0]


def place_shares(rows):
    """{place: its share of a figure's samples}, the mean over all figures, so that those of many
    samples weigh no more. Ranks that share cores do not ask for places."""
    figures = {}
    for row in rows:
        if row["ranks"] <= (os.cpu_count() or 1):
            places = figures.setdefault((row["label"], row["bytes"]), {})
            places[row["place"]] = places.get(row["place"], 0) + row["samples"]
    return {place: sum(places.get(place, 0) / sum(places.values())
                       for places in figures.values()) / len(figures)
            for place in PLACES} if figures else {}


class Figures:
    """Rows of all turns, asked by label, size and placement."""

    def __init__(self, rows):
        self.rows = rows

    def median(self, label, size, place=None):
        """us, over the turns; of all placements together without one. None: no such rows."""
        pairs = [(row["median_us"], row["samples"]) for row in self.rows
                 if row["label"] == label and row["bytes"] == size
                 and place in (None, row["place"])]
        return _weighted_median(pairs) if pairs else None

    def samples(self, label, size, place):
        return sum(row["samples"] for row in self.rows if row["label"] == label
                   and row["bytes"] == size and row["place"] == place)

    def labels(self, kind):
        return list(dict.fromkeys(row["label"] for row in self.rows if row["kind"] == kind))

    def sizes(self):
        return sorted({row["bytes"] for row in self.rows})

    def shared_place(self, first, second, size):
        """The placement that both saw most of; None: none, then all count together."""
        common = {place: min(self.samples(first, size, place), self.samples(second, size, place))
                  for place in PLACES}
        place = max(common, key=common.get)
        return place if common[place] > 0 else None

    def pair(self, ours, other, size):
        """(place, our us, other's us) in one placement; None where one is missing."""
        place = self.shared_place(ours, other, size)
        mine, its = self.median(ours, size, place), self.median(other, size, place)
        return None if mine is None or its is None else (place or "any", mine, its)

    def best_peer(self, ours, size):
        """The peer of the smallest time beside ours: (label, place, our us, its us)."""
        best = None
        for label in self.labels("peer"):
            found = self.pair(ours, label, size)
            if found and (best is None or found[2] < best[3]):
                best = (label, *found)
        return best


def median_of(values):
    return statistics.median(values) if values else None
