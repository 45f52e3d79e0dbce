#!/usr/bin/env bash
# stacks.sh - what every thread of some processes does: by gdb where there is one, else as far as
# the kernel tells. For a step that does not end, before it is killed.
#
#   stacks.sh PID...
gdb=$(type -P gdb || type -P cuda-gdb)
name() { # PID
    printf -- '-- %s: %s\n' "$1" "$(tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null | cut -c 1-200)"
}

# What costs no time first, of all of them.
for pid in "$@"; do
    [ -d "/proc/$pid/task" ] || continue
    name "$pid"
    for task in "/proc/$pid/task"/*; do
        printf '   thread %s %s: %s, waits in %s, call %s\n' "${task##*/}" "$(cat "$task/comm" 2>/dev/null)" \
            "$(sed -n 's/^State:[[:space:]]*//p' "$task/status" 2>/dev/null)" \
            "$(cat "$task/wchan" 2>/dev/null || echo '?')" "$(cut -d ' ' -f 1 "$task/syscall" 2>/dev/null || echo '?')"
        grep -q '^State:[[:space:]]*D' "$task/status" 2>/dev/null && sed 's/^/      /' "$task/stack" 2>/dev/null # in a driver?
    done
done
[ -n "$gdb" ] || exit 0
for pid in "$@"; do
    case $(cat "/proc/$pid/comm" 2>/dev/null) in
    '' | bash | sh | timeout | sleep | tee | sed | awk | cat) continue ;; # a script's own: nothing to see
    esac
    name "$pid"
    timeout -k 1 8 "$gdb" --batch -nx -p "$pid" -ex 'set pagination off' -ex 'thread apply all backtrace 24' 2>/dev/null |
        grep -E '^(Thread|#)' | cut -c 1-240
done
exit 0
