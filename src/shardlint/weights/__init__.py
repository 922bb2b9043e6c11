"""The weights layer."""
