"""link.py - two network namespaces joined by a link of a given rate and delay, 1 Gb/s and 100 us
each way unless told otherwise, and programs run on both sides of it.

Needs root and the kernel's namespaces; where they are not permitted open() raises Failed with the
reason. The kernel's netem shapes a veth pair where there is one; elsewhere a relay of ours carries
frames between two tap devices; where there are none either, the link keeps its own delay.
"""
import os
import re
import shutil
import tempfile
import time

from measuring.process import Beside, Failed, json_lines, rank_environments, run, run_all

RATE_MBIT, DELAY_US = 1000, 100
ADDRESSES = ["10.77.0.1", "10.77.0.2"]
PREFIX = "dp-compare-"
HERE = os.path.dirname(os.path.abspath(__file__))


def stale(names, is_alive):
    """Namespaces of those names that belong to a compare that is no more."""
    found = (re.fullmatch(PREFIX + r"(\d+)-[ab]", name) for name in names)
    return [match.group(0) for match in found if match and not is_alive(int(match.group(1)))]


def _is_alive(pid):
    return os.path.exists(f"/proc/{pid}")


class Link:
    """Up between open() and close(), which is called whatever became of open()."""

    def __init__(self, relay, rate_mbit=RATE_MBIT, delay_us=DELAY_US):
        """relay: the program to fall back on, tests/bench/peers/link_relay.c."""
        self.rate_mbit, self.delay_us = rate_mbit, delay_us
        self.names = [f"{PREFIX}{os.getpid()}-{side}" for side in "ab"]
        self.program, self.relay = relay, None
        self.carried = None  # once closed: what the relay says of itself
        self.folder = None
        self.shape = f"{rate_mbit / 1000:g} Gb/s, {delay_us} us"

    def open(self):
        if os.geteuid() != 0:
            raise Failed("namespaces need root")
        if shutil.which("ip") is None or shutil.which("tc") is None:
            raise Failed("no ip or tc on this machine (package iproute2)")
        self.folder = tempfile.mkdtemp(prefix="compare-link-")
        for name in stale(os.listdir("/run/netns") if os.path.isdir("/run/netns") else [],
                          _is_alive):
            run(["ip", "netns", "del", name], 10)
        for name in self.names:
            run(["ip", "netns", "add", name], 10)
        if self._has_netem():
            self._join_by_veth(["netem", "delay", f"{self.delay_us}us", "rate",
                                f"{self.rate_mbit}mbit"])
        elif os.path.exists("/dev/net/tun"):
            self._join_by_relay()
            self.shape += " by a relay"
        else:
            self._join_by_veth(["tbf", "rate", f"{self.rate_mbit}mbit", "burst", "256k", "latency",
                                "20ms"])
            self.shape = f"{self.rate_mbit / 1000:g} Gb/s, no delay (this kernel has no netem, no tap)"
        for name, address in zip(self.names, ADDRESSES):
            # Without addresses of IPv6 nobody asks for neighbours before both ends are up.
            run(["ip", "-n", name, "link", "set", "link0", "addrgenmode", "none"], 10)
            run(["ip", "-n", name, "addr", "add", f"{address}/24", "dev", "link0"], 10)
            for device in ("lo", "link0"):
                run(["ip", "-n", name, "link", "set", device, "up"], 10)
        for name in self.names:
            self._await(name)
        with open(self.secret(), "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
            f.write(os.urandom(32))

    @staticmethod
    def _await(name):
        """The kernel notes up to a second late that a veth pair runs; UCX takes no other. Of a tap
        device it does not say."""
        until = time.monotonic() + 5
        while not re.search("state (UP|UNKNOWN)",
                            run(["ip", "-n", name, "link", "show", "link0"], 10)):
            if time.monotonic() > until:
                raise Failed(f"link0 of {name} does not come up")
            time.sleep(0.02)

    def _has_netem(self):
        tc = ["tc", "-n", self.names[0], "qdisc"]
        try:
            run([*tc, "add", "dev", "lo", "root", "netem", "delay", "1us"], 10)
            run([*tc, "del", "dev", "lo", "root"], 10)
        except Failed:
            return False
        return True

    def _join_by_veth(self, shaping):
        a, b = self.names
        run(["ip", "-n", a, "link", "add", "link0", "type", "veth", "peer", "name", "link0",
             "netns", b], 10)
        for name in self.names:
            run(["tc", "-n", name, "qdisc", "add", "dev", "link0", "root", *shaping], 10)

    def _join_by_relay(self):
        self.relay = Beside([self.program, *self.names, f"rate_mbit={self.rate_mbit}",
                             f"delay_us={self.delay_us}"], "the link's relay")
        self.relay.line(10)

    def check(self):
        """Raises Failed when the link is broken."""
        if self.relay:
            self.relay.check()

    def secret(self):
        return os.path.join(self.folder, "secret")

    def close(self):
        if self.relay:
            relay, self.relay = self.relay, None
            rows = json_lines(relay.stop())
            self.carried = rows[0] if rows else None
        if self.folder is None:
            return
        for name in self.names:
            try:
                run(["ip", "netns", "del", name], 10)
            except Failed:
                pass  # it was not made
        shutil.rmtree(self.folder, ignore_errors=True)

    def commands(self, command):
        """The command on each side, with a host name of its own."""
        return [["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c",
                 'hostname "$0"; exec "$@"', f"side{side}", *map(str, command)]
                for side, name in enumerate(self.names)]

    def environments(self, environment):
        """What a rank on each side is told."""
        return rank_environments(2, dict(
            {"DP_SECRET_FILE": self.secret(), "GLOO_SOCKET_IFNAME": "link0",
             "OMP_NUM_THREADS": "1"}, **environment), ADDRESSES[0], local=False)

    def run_ranks(self, command, environment, timeout):
        """One rank on each side; rank 0's JSON lines."""
        rows = json_lines(run_all(self.commands(command), timeout,
                                  self.environments(environment))[0])
        if not rows:
            raise Failed("it printed no figures")
        return rows

    def line_ms(self, size, timeout):
        """What plain TCP takes to carry size bytes each way at once, at its best."""
        rows = self.run_ranks(["python3", os.path.join(HERE, "line.py"), size], {},
                              timeout)
        return rows[0]["seconds"] * 1e3


def carried_text(carried):
    """What the relay says of itself, as a line."""
    lost = sum(carried["dropped"]) + sum(carried["refused"])
    return (f"the relay carried {sum(carried['wire_bytes']) / 1e6:.0f} MB in "
            f"{sum(carried['frames'])} frames with {carried['cpu_s']:.1f} s of a core, and lost "
            f"{lost or 'none'}")
