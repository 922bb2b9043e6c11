"""`shardlint config`: what the settings are, whether they are right, what they may be, and a file to start from."""

from __future__ import annotations

