"""Several runs as one: variants of settings, search spaces, tables and reports. Nothing here imports Ray."""
