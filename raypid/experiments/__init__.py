"""Experiments: files and dictionaries of runs, with grids, distributions and seeds, become trials. Nothing here imports Ray."""
