#!/usr/bin/env python3
"""doors.py - in the negotiator nobody writes what belongs to another file.

ctest runs it as style_doors. It prints each write to a part of the state (coordinator/negotiator/state.h)
by a file that does not own the part, and each .c of the folder without a header of its name.
`doors.py --planted` checks the checker on small files.

A write is an assignment, ++ or --, or a call that changes its first argument, as memset() or
dp_bit_set(). Only the names in OWNERS are looked at; the scratch of n (targets, item, made) is everyone's.
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = "coordinator/negotiator"

# What is written, as the code names it, and by which files. table.c makes and clears entries,
# group_view.c makes views, so these two write parts that others own afterwards.
OWNERS = [
    (r"n->order\.", "order.c"), (r"n->(position|sequence)\b", "order.c"),
    (r"n->leave\.", "leave.c"), (r"n->join\.", "leave.c"), (r"n->stall\.", "stall.c"),
    (r"n->(out|fatal)\.", "outbox.c"), (r"n->is_fatal\b", "outbox.c"),
    (r"n->own\.", "agree.c"), (r"n->table\.", "table.c"),
    (r"n->(groups\.|world\b|child_of\b)", "group_view.c"),
    (r"n->child_position\[", "receive.c"), (r"n->is_finished\b", "agree.c"),
    (r"entry->(arrived|ended)\.", "agree.c table.c"), (r"entry->heard\b", "agree.c table.c"),
    (r"entry->(version|signature|is_pending)\b", "agree.c table.c"),
    (r"entry->(own|part)\b", "agree.c table.c"), (r"entry->is_queued\b", "agree.c"),
    (r"entry->sent\.", "outbox.c table.c"), (r"entry->stall\.", "stall.c table.c"),
    (r"entry->leave\.", "leave.c table.c"), (r"entry->making\.", "contest.c table.c"),
    (r"entry->(hash|id|index|passing|view|root|peer|expect|expected|name|own_expect)\b", "table.c"),
    (r"view->(is_closed|closed_rank|closed_position)\b", "leave.c group_view.c"),
    (r"view->(joined\w*|last_joined|has_join|is_join_\w+|join_request)\b", "leave.c group_view.c"),
    (r"view->(own_pending|ending)\b", "agree.c"),
    (r"view->(uid|group_index|name|members|member_count|own|expect|expected|below)\b", "group_view.c"),
]
INDEX = r"(?:\[[^][]*(?:\[[^][]*\][^][]*)*\]|[\w.]|->)*"
CALLS = r"\b(?:memset|memcpy|snprintf|dp_bit_set|dp_entry_array_push|dp_entry_array_remove)\(\s*&?"


def writes_of(pattern):
    name = r"(?<![\w.>])(?:\w+->)*?" + pattern + INDEX
    return re.compile(r"%s\s*(?:=(?!=)|[-+|&^*/]=|\+\+|--)|(?:\+\+|--)%s|%s%s" % (name, name, CALLS, name))


RULES = [(writes_of(pattern), owners.split()) for pattern, owners in OWNERS]


def without_comments(text):
    return re.sub(r"/\*.*?\*/|\"(?:\\.|[^\"\\])*\"", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S)


def foreign_writes(name, text):
    # an entry or a view may be reached through an array or a list
    text = re.sub(r"(?:\bn->table\.)?\b(?:going|entries\[[^][]*\]|oldest|first|subject)->", "entry->",
                  without_comments(text)).replace("entry->view->", "view->")
    for rule, owners in RULES:
        if name in owners:
            continue
        for found in rule.finditer(text):
            yield "%s/%s:%d: writes %s, which is %s's" % (
                FOLDER, name, text.count("\n", 0, found.start()) + 1, " ".join(found.group(0).split()), owners[0])


def check_folder():
    folder = os.path.join(ROOT, FOLDER)
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".c"):
            continue
        if not os.path.exists(os.path.join(folder, name[:-2] + ".h")):
            yield "%s/%s has no header of its name" % (FOLDER, name)
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            yield from foreign_writes(name, file.read())


def check_planted():
    planted = ["n->order.is_urgent = 1;", "n->position++;", "n->leave.kept[n->leave.kept_count++] = keep;",
               "entry->sent.wants_partial = 1;", "n->table.entries[i]->stall.list = LISTED;",
               "dp_bit_set(entry->heard, branch);", "dp_entry_array_remove(&n->out.news, entry);",
               "view->joined_below[branch] += 1;", "memset(n->leave.fins, 0, 8);", "--n->own.pending;"]
    allowed = ["if (n->order.is_urgent == 1) return;", "x = n->position;", "entry->view->own_rank = 1;", "/* n->position++ */",
               "dp_own_count(n, 1);", "item->position = 4;", "launch.sequence = n->sequence + 1;",
               "dp_bit_set(branches, entry->root);"]
    for line in planted:
        if not list(foreign_writes("receive.c", line)):
            yield "not found: " + line
    for line in allowed:
        for found in foreign_writes("receive.c", line):
            yield "found: " + found
    if list(foreign_writes("order.c", planted[0])):
        yield "an owner may not write its own"


def main():
    found = list(check_planted() if sys.argv[1:] == ["--planted"] else check_folder())
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
