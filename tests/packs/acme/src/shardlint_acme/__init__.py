"""Acme's house rules for shardlint."""
