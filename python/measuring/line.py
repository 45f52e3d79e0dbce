"""line.py - how long plain TCP takes to carry BYTES each way at once, between two ranks: the best
of three, as it is what others are measured by.

    RANK= MASTER_ADDR= MASTER_PORT= line.py BYTES
"""
import json
import os
import socket
import sys
import threading
import time

PIECE = bytes(1 << 20)


def connect(rank, address):
    if rank == 0:
        with socket.create_server(address) as server:
            return server.accept()[0]
    for _ in range(200):
        try:
            return socket.create_connection(address, timeout=60)
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"rank {rank}: nobody listens at {address}")


def send(connection, size):
    view = memoryview(PIECE)
    while size > 0:
        size -= connection.send(view[:min(size, len(PIECE))])


def receive(connection, size):
    buffer = bytearray(len(PIECE))
    while size > 0:
        got = connection.recv_into(buffer, min(size, len(buffer)))
        if got == 0:
            raise SystemExit("the other rank went away")
        size -= got


def main():
    rank, size = int(os.environ["RANK"]), int(sys.argv[1])
    connection = connect(rank, (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for part in (1 << 20, size, size, size):  # the first warms the connection up
        begin = time.monotonic()
        # Rank 1 begins when rank 0 says so: what it had sent before would come to rank 0 in no time.
        if rank == 0:
            connection.sendall(b"!")
        else:
            receive(connection, 1)
        sender = threading.Thread(target=send, args=(connection, part))
        sender.start()
        receive(connection, part)
        sender.join()
        times.append(time.monotonic() - begin)
    if rank == 0:
        print(json.dumps({"bytes": size, "seconds": min(times[1:])}))


if __name__ == "__main__":
    main()
