"""Rules of phase D4: materialization."""
