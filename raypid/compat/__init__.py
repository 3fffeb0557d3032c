"""Other libraries' names, as data. Only `raypid.registry.other_names` reads them, and only when they are needed."""
