"""The integrations layer."""
