"""What users add, by name: registries, modules and projects, and whether what they name may be imported."""
