# json.sh - text into JSON, with nothing but the tools of any machine.

# stdin as the inside of a JSON string: lines, in plain ASCII.
json_text() {
    LC_ALL=C tr -d '\000\r' | LC_ALL=C tr '\001-\010\013\014\016-\037\177-\377' '?' |
        sed 's/[\\"]/\\&/g; s/\t/\\t/g' | awk '{ printf "%s%s", (NR > 1 ? "\\n" : ""), $0 }'
}

# A short text of one line as a JSON string, in `json`.
json_string() {
    local LC_ALL=C
    json=${1//$'\t'/ }
    json=${json//[! -~]/?}
    json=${json//\\/\\\\}
    json=\"${json//\"/\\\"}\"
}

# stdin: NAME<TAB>VALUE<TAB>UNIT lines; stdout: a JSON array of them. A VALUE must be a number.
json_figures() {
    awk -F '\t' 'function text(s) { gsub(/[\\"]/, "", s); return s }
        $2 ~ /^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$/ {
            printf "%s{\"name\":\"%s\",\"value\":%s,\"unit\":\"%s\"}", n++ ? "," : "", text($1), $2, text($3) }'  |
        sed 's/^/[/; s/$/]/' | grep . || printf '[]'
}
