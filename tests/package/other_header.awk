# Makes dp.h of another version: each struct with a `size` has one field fewer, or one more.
#
#   awk -v change=fewer|same|more -f other_header.awk dp.h
function flush_struct(   i, last) {
    last = 0
    for (i = 1; i <= count; i++)
        if (line[i] ~ /^    [a-z].*;/) last = i
    for (i = 1; i <= count; i++) {
        if (sized && change == "fewer" && i == last) continue
        print line[i]
        if (sized && change == "more" && i == last) print "    uint64_t added;"
    }
    changed += sized
    count = 0
}
/^typedef struct dp_[a-z_]+ \{/ { inside = 1; sized = 0; count = 0 }
inside {
    line[++count] = $0
    if (count == 2 && $0 ~ /^    size_t size;/) sized = 1
    if ($0 ~ /^}/) { flush_struct(); inside = 0 }
    next
}
/^#define DP_[A-Z_]+_INIT/ { macro = 1 }
macro && /sizeof\(/ { # the initialisers, on one line
    if (change == "fewer") sub(/, [^,]*[^,\\ ] *\\$/, " \\")
    macro = 0
}
{ print }
END { if (changed != 7) { print "#error \"" changed " structs with a size, 7 are known\"" } }
