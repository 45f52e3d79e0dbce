"""What tests/bench/compare is made of, one idea per file."""
