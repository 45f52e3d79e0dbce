"""link.py - what ranks on both sides of a link of 1 Gb/s and 100 us each way reach over it."""
import os

from measuring.link import Link, carried_text
from measuring.process import Failed, Late


def _ours(lab, link, wire, arguments):
    table = os.path.join(link.folder, f"table.{wire}")
    # Where the cores are says nothing about a link, and to ask takes seconds where both ranks share
    # one.
    rows = link.run_ranks([lab.path("way_dp"), "memory=arena", f"wire={wire}", f"table={table}",
                           "seconds=1", "probe=0", *arguments], {"DP_UCX_DEVICES": "link0"},
                          lab.limit(180))
    if any(row["wrong"] for row in rows):
        raise Failed(f"wrong results over the link: {rows}")
    return rows[0]["median_us"] / 1e3


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
    "why": the reason why there is no link. A link that breaks ends the part."""
    link = Link(lab.path("link_relay"))
    try:
        try:
            link.open()
        except Failed as error:
            found["why"] = f"no link: {error}"[:200]
            return
        _measure(lab, options, link, found)
    finally:
        link.close()
        if link.carried:
            found["relay"] = link.carried
            lab.say("  " + carried_text(link.carried))


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
            link.check()
            lab.note(f"over the link, {label}", error)
