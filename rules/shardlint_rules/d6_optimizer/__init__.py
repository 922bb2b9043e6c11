"""Rules of phase D6: optimizer."""
