#!/usr/bin/env bash
# step.sh - whole training steps of GPT-2 124M on the CPU: examples/gpt2 and PyTorch in turn, tokens/s
# and their ratio. It is one part of compare; all its flags work here too.
#
#   tests/bench/step.sh [--quick] [--turns N] [--preset tiny] ...        see tests/bench/compare --help
exec "$(dirname "$0")/compare" --only step "$@"
