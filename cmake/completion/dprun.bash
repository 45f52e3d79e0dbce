# bash completion of libdp's programs: _longopt is bash-completion's, and asks for --help.
complete -F _longopt dprun dptrace dpbench gpt2
