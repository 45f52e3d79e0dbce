# Makes dp.h of another version: each struct with a `size` has one field fewer, or one more. Versions add whole words
# only, so of two ints that share the last word both go.
#
#   awk -v change=fewer|same|more -f other_header.awk dp.h
function flush_struct(   i, last, pair, ints, goes) {
    last = pair = ints = goes = 0
    for (i = 1; i <= count; i++) {
        if (line[i] !~ /^    [a-z].*;/) continue
        pair = last
        last = i
        ints = line[i] ~ /^    int / ? ints + 1 : 0
    }
    dropped = ints > 0 && ints % 2 == 0 ? 2 : 1
    for (i = 1; i <= count; i++) {
        if (line[i] ~ /^    [a-z].*;/ || line[i] ~ /^}/) # else the rest of a comment, which goes with its field
            goes = sized && change == "fewer" && (i == last || (dropped == 2 && i == pair))
        if (goes && match(line[i], /[a-z_]+;/)) gone[substr(line[i], RSTART, RLENGTH - 1)] = 1
        if (goes) continue
        if (sized && change == "more" && line[i] ~ /^}/) print "    uint64_t added;"
        print line[i]
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
macro { # the initialisers of fields that went go too
    for (name in gone) gsub("[.]" name " = [^,)]*(, )?", "")
    macro = /\\$/
    if (!macro) delete gone
}
{ print }
END { if (changed != 12) { print "#error \"" changed " structs with a size, 12 are known\"" } }
