"""What other programs and earlier versions call things."""
