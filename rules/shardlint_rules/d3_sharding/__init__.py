"""Rules of phase D3: ownership and sharding."""
