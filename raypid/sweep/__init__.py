"""Experiments: files and dictionaries of runs become trials; searches for settings. Nothing here imports Ray."""
