"""The plugins layer."""
