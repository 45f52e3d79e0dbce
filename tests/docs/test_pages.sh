#!/bin/bash
# test_pages.sh - what the pages name is there: files, folders, functions in files, linked pages.
#
#   test_pages.sh ROOT             all pages of the repository; exits with 1 and a line for each mistake
#   test_pages.sh ROOT --planted   that mistakes made on purpose are found
#
# Run by ctest. A page is README.md, CONTRIBUTING.md or docs/*.md. Checked are
#   coordinator/api/operation/submit.c               a path from the root, also with * and {a,b}
#   coordinator/api/operation/submit.c:dp_submit()   a path and a name that the file must contain
#   [text](page.md#heading)                a link, from the page's folder, and the heading
#   DP_SPIN, DP_ERR_ORDER, dp_wait()       a setting (runtime/base/config.c) or a name in the sources
#   These are 2 hops in 1 files            the lines "1. `path:function()` ..." are counted
#   | READY | up | ... |                   the items of docs/protocol.md: those of messages.h, and no other
set -u
export LC_ALL=C
root=$(realpath "$1")
rooms='include|kernels|runtime|fusion|coordinator|launcher|examples|python|tests|cmake|docs'

# check_paths PAGE: every word that begins with one of the rooms, and is no part of a longer path
check_paths() {
    grep -noE "(^|[^A-Za-z0-9_./-])($rooms)/[A-Za-z0-9_./*{},-]*(:[A-Za-z_][A-Za-z0-9_]*\(\))?" "$1" |
        while IFS= read -r hit; do
            line=${hit%%:*}
            word=$(sed -E "s,^[^/]*[^A-Za-z/]*(($rooms)/),\1,; s/[.,]*\$//" <<<"${hit#*:}")
            case $word in *...*) continue ;; esac # any path
            name=
            case $word in *:*) name=${word##*:} name=${name%%(*} word=${word%%:*} ;; esac
            expect_path "$1:$line" "$word" "$name"
        done
}

expect_path() { # expect_path WHERE PATH NAME: every brace of it, and NAME in the file
    local each found
    for each in $(brace "$2"); do
        found=$(compgen -G "$root/${each%/}") || is_program "$each" || { echo "$1: $each is not there"; continue; }
        [ -z "$3" ] || grep -qw "$3" $found || echo "$1: $each has no $3"
    done
}

is_program() { # tests/NAME, as it lies in a build folder
    [[ $1 =~ ^tests/([a-z0-9_]+)$ ]] && grep -rqw --include=CMakeLists.txt "${BASH_REMATCH[1]}" "$root/tests"
}

brace() { # a{b,c}d as words; it comes from a page, so nothing else is expanded
    local before=${1%%\{*} rest inside each
    case $1 in *\{*\}*) ;; *) printf '%s\n' "$1"; return ;; esac
    rest=${1#*\{} inside=${rest%%\}*}
    for each in ${inside//,/ }; do brace "$before$each${rest#*\}}"; done
}

# check_links PAGE: targets inside the repository
check_links() {
    local folder
    folder=$(dirname "$1")
    awk '/^```/ { code = !code } !code { while (match($0, /\]\([^)]*\)/)) { print NR ":" substr($0, RSTART + 2, RLENGTH - 3); $0 = substr($0, RSTART + RLENGTH) } }' "$1" |
        while IFS= read -r hit; do
            target=${hit#*:}
            case $target in http*) continue ;; esac
            file=$folder/${target%%#*}
            [ -n "${target%%#*}" ] || file=$1
            [ -e "$file" ] || { echo "$1:${hit%%:*}: $target is not there"; continue; }
            case $target in
            *'#'*) headings "$file" | grep -qxF "${target#*#}" || echo "$1:${hit%%:*}: $target: no such heading" ;;
            esac
        done
}

headings() { # as a forge makes anchors of them
    sed -n 's/^##* //p' "$1" | tr 'A-Z' 'a-z' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}

# check_items PAGE: the first column of rows whose second one is a direction, beside the enumerators
check_items() {
    local named known
    named=$(sed -nE 's/^\| ([A-Z_, ]+) \| (up|down|both)[ ,].*/\1/p' "$1" | tr -d ' ' | tr ',' '\n' | sort -u)
    [ -n "$named" ] || return 0
    known=$(sed -nE 's/^ *DP_ITEM_([A-Z_]+) = .*/\1/p' "$root/coordinator/negotiator/messages.h" | sort -u)
    comm -3 <(echo "$named") <(echo "$known") |
        sed -E "s,^\t(.*),$1: messages.h has \1\, which is not in the table,; t; s,^,$1: messages.h has no ,"
}

# check_names PAGE: settings, constants and functions
known_names=$(mktemp)
trap 'rm -f "$known_names"' EXIT
{
    sed -nE 's/^ +[A-Z_]+\("([A-Z_]+)",.*/DP_\1/p' "$root/runtime/base/config.c"
    find "$root"/{include,kernels,runtime,fusion,coordinator,launcher,examples,tests,cmake} "$root/CMakeLists.txt" -type f \
        ! -path '*/mutation/*' ! -path '*/corpus/*' ! -name test_pages.sh -print0 | xargs -0 grep -hoE '\b(DP_[A-Z0-9_]+|dp_[a-z0-9_]+)'
} | sort -u >"$known_names"

check_names() {
    grep -oE '\b(DP_[A-Z0-9_]*[A-Z0-9]\b|dp_[a-z0-9_]+\()' "$1" | tr -d '(' | sort -u | comm -23 - "$known_names" | sed "s,^,$1: nothing is called ,"
}

# check_hops PAGE: a section's numbered lines that begin with a function, and the sentence that counts them
check_hops() {
    awk -v page="$1" '
        /^#/ { hops = files = 0; split("", seen) }
        match($0, /^[0-9]+\. `[^:`]+:[A-Za-z_0-9]+\(\)`/) {
            file = $0; sub(/^[0-9]+\. `/, "", file); sub(/:.*/, "", file)
            hops++; if (!(file in seen)) { seen[file] = 1; files++ }
        }
        match($0, /^These are [0-9]+ hops in [0-9]+ files/) {
            if ($3 != hops || $6 != files) print page ":" NR ": the path has " hops + 0 " hops in " files + 0 " files"
        }' "$1"
}

check() { check_items "$1"; check_hops "$1"; check_names "$1"; check_paths "$1"; check_links "$1"; }

if [ "${2-}" = --planted ]; then
    page=$(mktemp -d)/page.md
    trap 'rm -rf "$(dirname "$page")" "$known_names"' EXIT
    status=0
    for planted in '`coordinator/api/no_such_file.c` says' '(coordinator/api/operation/submit.c:no_such_function()),' \
        'in runtime/{base,no_such_room}/' '`tests/no_such_*.sh`' '[x](no_such_page.md)' '[x](#no-such-heading)' \
        '| NO_SUCH_ITEM | up | x |' $'1. `coordinator/api/operation/submit.c:dp_submit()`\nThese are 2 hops in 1 files.' 'DP_NO_SUCH_SETTING=1' 'calls `dp_no_such_function()`'; do
        printf '# Page\n%s\n' "$planted" >"$page"
        [ -n "$(check "$page")" ] || { echo "not found: $planted"; status=1; }
    done
    printf '# A page\n%s\n' 'See `coordinator/api/operation/{submit,wait}.c`, tests/docs/*.sh, `coordinator/api/operation/submit.c:dp_submit()`, [x](#a-page),' \
        'build/tests/scale and runtime/... .' >"$page"
    found=$(check "$page")
    [ -z "$found" ] || { echo "found without reason: $found"; status=1; }
    exit $status
fi
found=$(for page in "$root"/README.md "$root"/CONTRIBUTING.md "$root"/docs/*.md; do [ -f "$page" ] && check "$page"; done)
[ -z "$found" ] && exit 0
printf '%s\n' "${found//$root\//}"
exit 1
