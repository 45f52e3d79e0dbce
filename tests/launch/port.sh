# port.sh - TCP ports of 127.0.0.1 for tests that run at once. Sourced by the scripts that listen on
# one: launch.sh, surroundings.sh, tests/security/security.sh.

# free_port [N]: the N-th port of this script that nobody listens on now. Scripts that run at once
# have pids near each other, so they begin to look at different ports; below 32768 the kernel gives
# none to connections.
free_port() {
    local port first=$(($$ + ${1:-0} * 2500))
    for ((port = first; port < first + 50; port++)); do
        (exec 3<>"/dev/tcp/127.0.0.1/$((20000 + port % 10000))") 2>/dev/null && continue
        echo $((20000 + port % 10000))
        return
    done
    return 1
}
