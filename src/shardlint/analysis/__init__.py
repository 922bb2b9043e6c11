"""Pure functions over facts, for rules and reports. Nothing here imports torch."""
