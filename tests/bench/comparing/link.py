"""link.py - two network namespaces joined by a link of 1 Gb/s, and what ranks on both sides reach.

Needs root and the kernel's namespaces; where they are not permitted Link() raises Failed with the
reason. The delay is shaped where the kernel has netem, else the link keeps its own.
"""
import os
import shutil
import tempfile
import time

from comparing.process import Failed, Late, json_lines, rank_environments, run, run_all

RATE_MBIT, DELAY_US = 1000, 100
ADDRESSES = ["10.77.0.1", "10.77.0.2"]
HERE = os.path.dirname(os.path.abspath(__file__))


class Link:
    """Up between `with` and its end."""

    def __init__(self):
        self.names = [f"dp-compare-{os.getpid()}-{side}" for side in "ab"]
        self.folder = None
        self.shape = f"{RATE_MBIT / 1000:g} Gb/s, {DELAY_US} us"

    def __enter__(self):
        if shutil.which("ip") is None or shutil.which("tc") is None:
            raise Failed("no ip or tc on this machine (package iproute2)")
        self.folder = tempfile.mkdtemp(prefix="compare-link-")
        try:
            self._open()
        except BaseException:  # a signal, too
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def _open(self):
        a, b = self.names
        for name in self.names:
            run(["ip", "netns", "add", name], 10)
        run(["ip", "-n", a, "link", "add", "link0", "type", "veth", "peer", "name", "link0",
             "netns", b], 10)
        for name, address in zip(self.names, ADDRESSES):
            run(["ip", "-n", name, "addr", "add", f"{address}/24", "dev", "link0"], 10)
            for device in ("lo", "link0"):
                run(["ip", "-n", name, "link", "set", device, "up"], 10)
            self._shape(name)
        for name in self.names:
            self._await(name)
        with open(self.secret(), "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
            f.write(os.urandom(32))

    @staticmethod
    def _await(name):
        """The kernel notes up to a second late that a link runs; UCX takes no other."""
        until = time.monotonic() + 5
        while "state UP" not in run(["ip", "-n", name, "link", "show", "link0"], 10):
            if time.monotonic() > until:
                raise Failed(f"link0 of {name} does not come up")
            time.sleep(0.02)

    def _shape(self, name):
        add = ["tc", "-n", name, "qdisc", "add", "dev", "link0"]
        try:
            run([*add, "root", "netem", "delay", f"{DELAY_US // 2}us", "rate", f"{RATE_MBIT}mbit"],
                10)
        except Failed:
            run([*add, "root", "tbf", "rate", f"{RATE_MBIT}mbit", "burst", "256k", "latency",
                 "20ms"], 10)
            self.shape = f"{RATE_MBIT / 1000:g} Gb/s, no delay (this kernel has no netem)"

    def secret(self):
        return os.path.join(self.folder, "secret")

    def close(self):
        for name in self.names:
            try:
                run(["ip", "netns", "del", name], 10)
            except Failed:
                pass  # it was not made
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def run_ranks(self, command, environment, timeout):
        """One rank on each side, each with a host name of its own; rank 0's JSON lines."""
        commands = [["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c",
                     'hostname "$0"; exec "$@"', f"side{side}", *map(str, command)]
                    for side, name in enumerate(self.names)]
        environments = rank_environments(2, dict(
            {"DP_SECRET_FILE": self.secret(), "GLOO_SOCKET_IFNAME": "link0",
             "OMP_NUM_THREADS": "1"}, **environment), ADDRESSES[0], local=False)
        rows = json_lines(run_all(commands, timeout, environments)[0])
        if not rows:
            raise Failed("it printed no figures")
        return rows

    def line_ms(self, size, timeout):
        """What plain TCP takes to carry size bytes each way at once."""
        rows = self.run_ranks(["python3", os.path.join(HERE, "..", "peers", "line.py"), size], {},
                              timeout)
        return rows[0]["seconds"] * 1e3


def _ours(lab, link, wire, arguments):
    table = os.path.join(link.folder, f"table.{wire}")
    rows = link.run_ranks([lab.path("way_dp"), "memory=arena", f"wire={wire}", f"table={table}",
                           "seconds=1", *arguments], {"DP_UCX_DEVICES": "link0"}, lab.limit(180))
    if any(row["wrong"] for row in rows):
        raise Failed(f"wrong results over the link: {rows}")
    # The placement of cores says nothing about a link: the median of the largest class.
    return max(rows, key=lambda row: row["samples"])["median_us"] / 1e3


def _ddp(lab, link, exchange, arguments):
    torch = lab.peers.torches[0]
    script = os.path.join(lab.root, "tests/bench/peers/ddp_torch.py")
    rows = link.run_ranks(
        [torch.python, script, f"exchange={exchange}", *arguments, "steps=3", "warmup=1",
         f"libdp={lab.build}/libdp.so", "wire=fp16"],
        dict(torch.environment, DP_UCX_DEVICES="link0"), lab.limit(180))
    return rows[0]["ms"]


def measure(lab, options, found):
    """Fills found with milliseconds of each way: {"shape": ..., "line": ..., "libdp fp16": ...};
    "why": the reason why there is no link."""
    try:
        link = Link()
        with link:
            _measure(lab, options, link, found)
    except Late:
        raise
    except Failed as error:
        found["why"] = error.reason[:200]


def _measure(lab, options, link, found):
    megabytes = 32 if options.quick else None
    arguments = [f"set={megabytes or 'gpt2'}"]
    found["bytes"] = size = megabytes << 20 if megabytes else 124439808 * 4
    found["shape"] = link.shape
    jobs = [("line", lambda: link.line_ms(size, lab.limit(120)))]
    jobs += [(f"libdp {wire}", lambda wire=wire: _ours(lab, link, wire, arguments))
             for wire in ("none", "fp16")]
    if lab.peers.torches:
        jobs += [(f"ddp {exchange}", lambda name=exchange: _ddp(lab, link, name, arguments))
                 for exchange in ("gloo", "fp16", "libdp")]
    for label, job in jobs:
        try:
            found[label] = job()
            lab.say(f"  over the link, {label}: {found[label]:.0f} ms")
        except Late:
            raise
        except Failed as error:
            lab.note(f"over the link, {label}", error)
