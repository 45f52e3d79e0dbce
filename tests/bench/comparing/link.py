"""link.py - two network namespaces joined by a link of 1 Gb/s, and what ranks on both sides reach.

Needs root and the kernel's namespaces; where they are not permitted Link() raises Failed with the
reason. The delay is shaped where the kernel has netem, else the link keeps its own.
"""
import os
import shutil
import tempfile

from comparing.process import Failed, json_lines, rank_environments, run, run_all

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
        except Failed:
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
        with open(self.secret(), "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
            f.write(os.urandom(32))

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
        return json_lines(run_all(commands, timeout, environments)[0])

    def line_seconds(self, size):
        """What plain TCP takes to carry size bytes each way at once."""
        rows = self.run_ranks(["python3", os.path.join(HERE, "..", "peers", "line.py"), size], {},
                              120)
        return rows[0]["seconds"]


def measure(lab, quick, say):
    """Milliseconds of each way over the link: {"shape": ..., "line": ..., "libdp fp32": ...}."""
    set_name, size = ("32", 32 << 20) if quick else ("gpt2", 124439808 * 4)
    arguments = [f"sizes={size}"] if quick else ["set=gpt2"]
    found = {"bytes": size}
    with Link() as link:
        found["shape"] = link.shape
        found["line"] = link.line_seconds(size) * 1e3
        say(f"  TCP line {found['line']:.0f} ms")
        for wire in ("none", "fp16"):
            table = os.path.join(link.folder, f"table.{wire}")
            rows = link.run_ranks([lab.path("way_dp"), "memory=arena", f"wire={wire}",
                                   f"table={table}", "seconds=1", *arguments],
                                  {"DP_UCX_DEVICES": "link0"}, 180)
            found[f"libdp {wire}"] = _all_places(rows)
            say(f"  libdp, wire {wire}: {found[f'libdp {wire}']:.0f} ms")
        for exchange in ("gloo", "fp16", "libdp"):
            if not lab.peers.torches:
                break
            torch = lab.peers.torches[0]
            script = os.path.join(lab.root, "tests/bench/peers/ddp_torch.py")
            rows = link.run_ranks(
                [torch.python, script, f"exchange={exchange}", f"set={set_name}", "steps=3",
                 f"libdp={lab.build}/libdp.so", "wire=fp16"],
                dict(torch.environment, DP_UCX_DEVICES="link0"), 180)
            found[f"ddp {exchange}"] = rows[0]["ms"]
            say(f"  torch DDP by {exchange}: {rows[0]['ms']:.0f} ms")
    return found


def _all_places(rows):
    """The placement of cores says nothing about a link: the median of the largest class."""
    if not rows or any(row["wrong"] for row in rows):
        raise Failed(f"wrong results over the link: {rows}")
    return max(rows, key=lambda row: row["samples"])["median_us"] / 1e3
