"""Rules of phase D2: structure."""
