"""Runs a program as Python itself would: a script, or `-m MODULE`. For `python3 -m dp.torch` and `-m dp.horovod`."""
from __future__ import annotations

import os
import runpy
import sys


def run(arguments: list[str]) -> None:
    """arguments: [SCRIPT, ...] or ["-m", MODULE, ...]. Sets sys.argv and sys.path as Python does, and runs it as
    __main__. An exception of it goes on to the caller. SystemExit: there is no such script. ValueError: `-m` without a
    module, or nothing."""
    is_module = arguments[:1] == ["-m"]
    if len(arguments) < 1 + is_module:
        raise ValueError("a script, or -m MODULE")
    # `python3 -m dp.torch` has the current folder in front; under -P, safe_path, neither has any.
    sets_path = not getattr(sys.flags, "safe_path", False)
    if is_module:
        if sets_path:
            sys.path[0] = os.getcwd()
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    if sets_path:
        sys.path[0] = os.path.dirname(os.path.realpath(arguments[0]))
    if not os.path.exists(arguments[0]):
        raise SystemExit(f"{sys.executable}: can't open file '{arguments[0]}': no such file")
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")
