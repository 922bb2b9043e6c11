"""How rules say numbers of things."""

from __future__ import annotations

from shardlint.names import counted

__all__ = ["counted"]
