"""The config layer."""
