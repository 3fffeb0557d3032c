"""The three training loops, and what feeds them."""
