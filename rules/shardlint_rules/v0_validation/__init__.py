"""Rules of phase V0: validation."""
