# header.awk - man pages of section 3 from dp.h: one for each of its sections, and one line that points there
# for each function.
#
#   awk -v folder=OUT -v version=X.Y.Z -f header.awk include/dp.h
#
# A section's page is its text: comments without their frame, declarations in bold.
function escape(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    if (text ~ /^[.']/) text = "\\&" text
    return text
}

function open_page(title,    word) {
    word = tolower(title)
    gsub(/[^a-z]+/, "_", word)
    page = "dp_" word
    file = folder "/" page ".3"
    pages = pages (pages == "" ? "" : ", ") page "(3)"
    files[++count] = file
    print ".TH " toupper(page) " 3 \"\" \"libdp " version "\"" >file
    print ".SH NAME\n" page " \\- dp.h: " tolower(title) > file
    print ".SH SYNOPSIS\n.B #include <dp.h>\n.PP\n.B cc program.c \\-ldp\n.SH DESCRIPTION\n.nf" > file
}

/^\/\* ---- / {
    title = $0
    sub(/^\/\* ---- /, "", title)
    sub(/ -+ \*\/$/, "", title)
    open_page(title)
    next
}
page == "" { next }
/^#ifdef __cplusplus/ { exit }

# The frame of a comment that has lines of its own.
/^\/\*/ { in_comment = 1 }
in_comment {
    text = $0
    is_last = text ~ /\*\/$/
    sub(/^\/\*+ ?/, "", text)
    sub(/^ \*\/$/, "", text)
    sub(/ ?\*\/$/, "", text)
    sub(/^ \* ?/, "", text)
    print escape(text) > file
    if (is_last) in_comment = 0
    next
}
{
    text = $0
    if (match(text, /^DP_API .*[ *]dp_[a-z0-9_]+\(/)) {
        name = substr(text, RSTART, RLENGTH - 1)
        sub(/.*[ *]/, "", name)
        if (name != page) print ".so man3/" page ".3" > (folder "/" name ".3")
    }
    sub(/^DP_API /, "", text)
    print text == "" ? "" : "\\fB" escape(text) "\\fR" > file
}

END {
    for (i = 1; i <= count; i++) print ".fi\n.SH SEE ALSO\n" pages > files[i]
}
