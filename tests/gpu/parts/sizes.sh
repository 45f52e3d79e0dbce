# sizes.sh - how large each thing is, on a GPU and in a rehearsal on simulated ones.
#
# size NAME prints the words of a row.
sizes_table() {
    cat <<'END'
# name         | on a GPU                                              | in a rehearsal
copy           | 1024                                                  | 1
tokens         | 2000000                                               | 4000
parity_model   | --preset tiny                                         | --layers 1 --heads 1 --width 16 --seq 8 --context 8
parity_batch   | 8                                                     | 3
parity_vocab   | 256                                                   | 128
speed_model    | --preset 124M                                         | --layers 1 --heads 1 --width 16 --seq 8 --context 8 --vocab 128
speed_batch    | 64                                                    | 2
speed_steps    | 60                                                    | 4
speed_log      | 20                                                    | 2
xl_model       | --preset 1558M                                        | --layers 1 --heads 1 --width 16 --seq 8 --context 8 --vocab 128
xl_batch       | 12                                                    | 2
xl_steps       | 12                                                    | 4
torch_steps    | 30                                                    | 3
profile_batch  | 16                                                    | 2
launches       | 450                                                   | 9
profile_steps  | 8                                                     | 5
profile_window | 5-7                                                   | 2-4
vocabulary     | 50257                                                 | 128
END
}

declare -A sizes
while IFS='|' read -r name real rehearsed; do
    name=${name// /}
    case $name in '#'*) continue ;; esac
    for column in real rehearsed; do
        shopt -s extglob
        value=${!column}
        value=${value##+( )}
        sizes[$column.$name]=${value%%+( )}
    done
done < <(sizes_table)

size() { # NAME
    local column=real
    [ "$rehearsal" = 0 ] || column=rehearsed
    [ -n "${sizes[$column.$1]:-}" ] || { echo "run.sh: no size $1" >&2; exit 2; }
    printf '%s' "${sizes[$column.$1]}"
}
