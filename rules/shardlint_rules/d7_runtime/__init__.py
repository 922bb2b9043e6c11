"""Rules of phase D7: runtime."""
