"""What other programs and earlier versions call things: settings and flags (names.py), modules (paths.py)."""
