#!/usr/bin/env python3
"""comments.py - finds comments that clang-format has run together.

ctest runs it as style_comments. It prints nothing where all are whole, and else one line for each
that is not. `comments.py --planted` checks the checker on comments that are broken in each way.

clang-format breaks a line that is too long, and joins its rest with the line below where both begin
at the same column. So tables, code and drawings in a comment are indented, with an empty line behind
them, and their lines fit.
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOPS = ["include", "kernels", "runtime", "fusion", "coordinator", "launcher", "examples", "python", "tests"]
SOURCE = re.compile(r"\.(c|h|cc|cu|cuh)$")
TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.S)
GAP = re.compile(r"(?<=\S) {3,}(?=\S)")
SPILLED = re.compile(r"\\\n\s*\*/")


def text_of(comment):
    """The comment's lines without its stars."""
    first, *rest = comment[2:-2].split("\n")
    return [re.sub(r"^\** ?", "", first)] + [re.sub(r"^\s*\* ?", "", line).rstrip() for line in rest]


def column(line):
    """Where the second column of a row begins; None for what is no row of two columns."""
    gaps = list(GAP.finditer(line))
    return gaps[0].end() if len(gaps) == 1 else None


def broken(comment):
    """The number of each broken line, and how it is broken."""
    if SPILLED.search(comment):
        yield 0, "the comment of a macro goes over the end of its line: put it above"
        return
    lines, in_list = text_of(comment), False
    for number, line in enumerate(lines):
        above = lines[number - 1] if number else ""
        indent = len(line) - len(line.lstrip())
        in_list = bool(line) and (in_list or re.match(r"@|- |\d\. ", line) is not None)
        if not line or in_list:
            continue
        if indent == 0 and above and len(above) - len(above.lstrip()) >= 3:
            yield number, "the last indented line has run into the text: shorten it, leave an empty line"
        elif indent == 0 and len(lines) > 1 and GAP.search(line):
            yield number, "columns that are not indented"
        elif ":=" not in line and number > 1 and indent > 0 and above.startswith(" " * indent) and above[indent] != " " and \
                None not in (column(line), column(above)) and \
                column(line) != column(above) == column(lines[number - 2]):
            yield number, "the second column begins elsewhere than in the lines above"


def all_broken(files):
    for path, text in sorted(files.items()):
        for match in TOKEN.finditer(text):
            if match.group().startswith("/*"):
                for number, how in broken(match.group()):
                    yield "%s:%d: %s" % (path, text.count("\n", 0, match.start()) + 1 + number, how)


PLANTED = {
    "code.h": " * Text:\n *\n *     start = now(); ...;\n * end = now(); f(start,\n * end);\n",
    "left.h": " * name   what it is\n * other  what that is\n",
    "row.h": " *     it ends    dead\n *     a beat     alive\n *     none, and   nothing\n",
    "macro.h": None,
    "whole.h": " * Text:\n *\n *     it ends    dead\n *     a beat     alive; f(x); y = 1\n *\n * More.  Two blanks.\n"
               " * @param x  an int,\n *           and more\n * @return     y\n",
    "string.h": None,
}


def check_planted():
    files = {path: "/*\n%s */\n" % text for path, text in PLANTED.items() if text}
    files["macro.h"] = "#define A  \\\n    1 /* of a thing   \\\n         */\n"
    files["string.h"] = 'char *a = "/*";\nint   b;\n    int c;\nint d; /* d */\n'
    found = [line.split(": ")[0] for line in all_broken(files)]
    expected = ["code.h:5", "left.h:2", "macro.h:2", "row.h:4"]
    return [] if found == expected else ["found %s, planted %s" % (found, expected)]


def sources():
    for top in TOPS:
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            for name in filter(SOURCE.search, names):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as file:
                    yield os.path.relpath(path, ROOT), file.read()


def main():
    found = check_planted() if sys.argv[1:] == ["--planted"] else list(all_broken(dict(sources())))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
