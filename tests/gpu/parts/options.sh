# options.sh - run.sh's command line. Sets mode, root, results, chosen_parts, only, most, archive,
# inner, rehearsal.
mode=run root='' results=gpu-results chosen_parts='a b c d e g h' only='' most=0 archive=''
python=${VISIT_PYTHON:-python3} # for the kit's own scripts
inner=()    # options that --rehearse hands on
rehearsal=0 # 1: the inner half of --rehearse; sizes are small, and the results say so

usage() { # WHY
    echo "run.sh: $1; --help" >&2
    exit 2
}

parse_options() {
    local value=''
    while [ $# != 0 ]; do
        case $1 in
        --only | --results | --most) # these take a value
            [ $# -ge 2 ] || usage "$1 wants a value"
            value=$2
            ;;
        esac
        case $1 in
        --first) chosen_parts='a b c d' inner+=("$1") ;;
        --second) chosen_parts='e' inner+=("$1") ;;
        --third) chosen_parts='g h' inner+=("$1") ;;
        --only) only=,$value, inner+=("$1" "$2") && shift ;;
        --most) most=$value inner+=("$1" "$2") && shift ;;
        --results) results=$value && shift ;;
        --list) mode=list ;;
        --help | -h) mode=help ;;
        --in-rehearsal) rehearsal=1 ;;
        --rehearse)
            mode=rehearse
            case ${2:---} in --*) ;; *) archive=$2 && shift ;; esac
            ;;
        -*) usage "$1: unknown" ;;
        *)
            [ -z "$root" ] || usage "$1: one folder only"
            root=$1
            ;;
        esac
        shift
    done
    case $most in '' | *[!0-9]*) usage "--most $most: whole seconds" ;; esac
    [ "$mode" != rehearse ] || root=${root:-$here/../../build-dev}
    [ -n "$root" ] || { [ -x "$here/dprun" ] && root=$here; } || root=build
    [ ! -d "$root" ] || root=$(cd "$root" && pwd)
    if [ -n "$only" ]; then
        chosen_parts='a b c d e g h'
        local names what
        names=$(list_parts | awk '$1 ~ /^[a-h]$/ { print $1; print $2 } $1 ~ /^[a-h]\./ { print $1; sub(/^[a-h]\./, "", $1); print $1 }')
        for what in ${only//,/ }; do
            grep -qxF -- "$what" <<<"$names" || usage "--only $what: no part or step; --list"
        done
    fi
}
