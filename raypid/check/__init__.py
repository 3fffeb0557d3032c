"""Is an environment right, how fast is it, what will training cost: `raypid check-env`."""
