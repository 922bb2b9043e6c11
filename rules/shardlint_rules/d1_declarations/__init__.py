"""Rules of phase D1: declarations."""
