"""What others call the same: names of other libraries, as data. Nothing of raypid imports it by itself: `raypid.registry.other_names` looks here."""
