"""Rules of phase D5: checkpoint."""
