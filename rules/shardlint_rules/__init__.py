"""The built-in pack. It uses the public API of shardlint and nothing else."""
