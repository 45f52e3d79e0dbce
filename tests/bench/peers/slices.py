"""slices.py - the measuring loop of slices.c for ways written in Python.

The loop itself stays in C; only the operation is called back. It must not know which way it is.
"""
import ctypes
import sys

MEMORY = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Parts(ctypes.Structure):
    _fields_ = [("count", ctypes.c_size_t), ("counts", ctypes.POINTER(ctypes.c_size_t))]


REDUCE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                          ctypes.POINTER(Parts))


class Way(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("user", ctypes.c_void_p), ("memory", MEMORY),
                ("reduce", REDUCE)]


def argument(name, otherwise):
    """The value of NAME=VALUE on the command line."""
    for text in sys.argv[1:]:
        key, equals, value = text.partition("=")
        if key == name and equals:
            return value
    return otherwise


def run(name, rank, ranks, memory, reduce):
    """memory(bytes) -> address; reduce(address, count, counts of the parts). Returns the code."""
    library = ctypes.CDLL(argument("slices", "libslices.so"))
    parts_of = {}  # a list is made once for each size, not in the timed path

    def call(_user, address, count, parts):
        try:
            if count not in parts_of:
                parts_of[count] = [parts[0].counts[i] for i in range(parts[0].count)]
            reduce(address, count, parts_of[count])
            return 0
        except Exception as error:  # a callback must not raise into C
            print(f"{name}: rank {rank}: {error}", file=sys.stderr)
            return 1

    way = Way(name.encode(), None, MEMORY(lambda _user, size: memory(size)), REDUCE(call))
    arguments = (ctypes.c_char_p * len(sys.argv))(*(text.encode() for text in sys.argv))
    return library.slices_run(ctypes.byref(way), rank, ranks, len(sys.argv), arguments)
