"""The collect layer."""
