"""What is written to disk: whole, checked, and never a pickle."""
