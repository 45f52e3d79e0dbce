# program.awk - a man page from what a program prints for --help.
#
#   PROGRAM --help | awk -v name=PROGRAM -v version=X.Y.Z -v about="what it does" -f program.awk
#
# Knows four kinds of lines: "usage: ..."; a heading, which stands alone between an empty and an
# indented line; an option or a command, with its text behind it or indented below; all others.
function escape(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    if (text ~ /^[.']/) text = "\\&" text
    return text
}

# What is printed as it stands: examples, tables.
function verbatim(on) {
    if (on != is_verbatim) print on ? ".nf" : ".fi"
    is_verbatim = on
}

function heading(text) {
    verbatim(0)
    print ".SH " toupper(escape(text))
}

function tagged(tag, text) {
    verbatim(0)
    print ".TP\n.B " escape(tag)
    if (text != "") print escape(text)
    is_tagged = 1
}

{ line[NR] = $0 }

END {
    print ".TH " toupper(name) " 1 \"\" \"libdp " version "\""
    print ".SH NAME\n" name " \\- " about
    for (i = 1; i <= NR; i++) {
        text = line[i]
        if (text ~ /^usage: /) {
            print ".SH SYNOPSIS\n" escape(substr(text, 8)) "\n.SH DESCRIPTION"
        } else if (text == "") {
            is_tagged = 0
            if (!is_verbatim) print ".PP"
        } else if (line[i - 1] == "" && text ~ /^[A-Z][A-Za-z ]*$/ && line[i + 1] ~ /^ /) {
            heading(text)
        } else if (match(text, /^  -[^ ]/) || index(text, name " ") == 1) {
            sub(/^ */, "", text)
            if (match(text, /  +/) && text ~ /^-/) tagged(substr(text, 1, RSTART - 1), substr(text, RSTART + RLENGTH))
            else tagged(text, "")
        } else if (is_tagged && text ~ /^ /) {
            sub(/^ */, "", text)
            print escape(text)
        } else {
            verbatim(text ~ /^ /)
            print escape(text)
        }
    }
    verbatim(0)
    print ".SH SEE ALSO\ndprun(1), dptrace(1), dpbench(1), gpt2(1), dp_life(3)"
}
