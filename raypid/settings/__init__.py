"""Settings of runs: what was asked for, where each value came from, and the files that hold them."""
