"""The structs and functions of dp._c against dp.h: the compiler checks sizes, offsets and types.

Needs a C compiler and the header, no other rank.
"""
import ctypes
import os
import re
import subprocess
import unittest

import dp
from dp import _c, arrays, errors

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HEADER = os.path.join(TOP, "include", "dp.h")
C_NAME = {"input": "in"}  # a keyword of Python
# Bound where a program needs them: sharding and device results are for C so far.
NOT_BOUND = re.compile(r"dp_shards_|dp_gradients_(sync_on|loss_scale_[gs]et)|dp_grouped_reduce_scatterv")


class Contract(unittest.TestCase):
    def compile(self, lines):
        source = "#include <stddef.h>\n#include \"dp.h\"\n" + "\n".join(lines) + "\n"
        done = subprocess.run(["cc", "-fsyntax-only", "-Werror", "-I", os.path.dirname(HEADER),
                               "-x", "c", "-"], input=source, text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_structs_have_the_layout_of_the_header(self):
        lines = []
        for name, kind in _c.STRUCTS.items():
            lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(kind)}, "{name}");')
            for field in kind._fields_:
                at = getattr(kind, field[0])
                member = C_NAME.get(field[0], field[0])
                lines.append(f"_Static_assert(offsetof({name}, {member}) == {at.offset} && "
                             f"sizeof((({name} *)0)->{member}) == {at.size}, \"{name}.{member}\");")
        self.compile(lines)

    def test_a_wrong_layout_is_found(self):
        with self.assertRaises(AssertionError):
            self.compile([f"_Static_assert(sizeof(dp_options_t) == "
                          f"{ctypes.sizeof(_c.Options) + 8}, \"dp_options_t\");"])

    def test_every_function_is_bound_with_as_many_arguments(self):
        with open(HEADER) as file:
            text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
        found = re.findall(r"DP_API [^;]*?\b(dp_\w+)\(([^;]*)\);", text)
        self.assertGreater(len(found), 70)
        for name, arguments in found:
            if NOT_BOUND.match(name):
                continue
            self.assertIn(name, _c.FUNCTIONS)
            count = 0 if arguments.strip() == "void" else arguments.count(",") + 1
            self.assertEqual(len(_c.FUNCTIONS[name][1]), count, name)

    def test_enumerators_have_the_values_of_the_header(self):
        lines = [f'_Static_assert(DP_{name.upper()} == {number}, "{name}");'
                 for number, name in enumerate(arrays.NAMES)]
        for number, name in enumerate(("SUM", "AVERAGE", "MIN", "MAX", "PRODUCT")):
            self.assertEqual(getattr(dp, name), number)
            lines.append(f'_Static_assert(DP_{name} == {number}, "{name}");')
        self.compile(lines)

    def test_every_status_has_an_exception(self):
        with open(HEADER) as file:
            names = re.findall(r"^    (DP_ERR_\w+)", file.read(), flags=re.M)
        self.assertEqual(len(names) + 1, len(errors.BY_STATUS))
        self.compile([f'_Static_assert({name} == {i + 1}, "{name}");'
                      for i, name in enumerate(names)])
        for i, name in enumerate(names):
            self.assertEqual(_c.lib.status_string(i + 1).decode(), name)
            self.assertEqual(errors.BY_STATUS[i + 1].status, i + 1)


if __name__ == "__main__":
    unittest.main()
