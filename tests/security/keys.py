#!/usr/bin/env python3
"""Looks for the keys of a job in the memory, arguments and environment of its processes.

    keys.py SECRET_FILE TICKET PID...   TICKET: what dprun handed to a rank ("-": none); its last bytes are a secret

Prints a line for each key that a process has, and fails then. Needs the right to read their memory.
"""
import hashlib
import hmac
import sys

SECRET_BYTES = 32
RESERVED = 200 << 20  # address space for tensors, of which little is used


def derive(key, purpose, data):
    """dp_auth_derive() of runtime/base/auth.c."""
    return hmac.new(key, bytes([len(purpose)]) + purpose + data, hashlib.sha256).digest()


def keys_of(secret_path, ticket_path):
    with open(secret_path, "rb") as file:
        secret = file.read()
    nodes = derive(bytes(SECRET_BYTES), b"secret of nodes", secret)
    keys = {
        "the secret's file": secret,
        "the key of the nodes": nodes,
        "the key of the nodes' links": derive(nodes, b"links of nodes", b""),
        "the key of the ranks": derive(bytes(SECRET_BYTES), b"secret file", secret),
    }
    if ticket_path != "-":
        with open(ticket_path, "rb") as file:
            keys["the ticket's secret"] = file.read()[-SECRET_BYTES:]
    return keys


def texts_of(pid):
    """Pairs of a place and its bytes."""
    for name in ("cmdline", "environ"):
        with open(f"/proc/{pid}/{name}", "rb") as file:
            yield name, file.read()
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            fields = line.split()
            begin, end = (int(number, 16) for number in fields[0].split("-"))
            if "rw" not in fields[1] or "[v" in line or end - begin > RESERVED:
                continue
            try:
                memory.seek(begin)
                yield fields[5] if len(fields) > 5 else "memory", memory.read(end - begin)
            except OSError:
                continue


def main():
    keys = keys_of(sys.argv[1], sys.argv[2])
    found = looked = 0
    for pid in sys.argv[3:]:
        with open(f"/proc/{pid}/comm") as file:
            name = file.read().strip()
        for place, data in texts_of(pid):
            looked += len(data)
            for what, key in keys.items():
                if key in data or (place in ("cmdline", "environ") and key.hex().encode() in data):
                    print(f"{name} {pid}: {what} in {place}")
                    found += 1
    print(f"{found} found in {len(sys.argv) - 3} processes, {looked >> 20} MiB")
    return 1 if found > 0 or looked == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
