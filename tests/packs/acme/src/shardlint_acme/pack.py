"""Acme's entry point: every hook that a pack may implement. What they return is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from shardlint import PackInfo, hookimpl

if TYPE_CHECKING:
    from shardlint import Rule
    from shardlint.contract import Contract, ContractQuery


@hookimpl
def shardlint_pack() -> PackInfo:
    """Say who the pack is: all its codes are ACM and three digits."""
    return PackInfo(name="acme", prefix="ACM", api=1, docs_url="https://acme.example/shardlint-acme")


@hookimpl
def shardlint_rules() -> Iterable[type[Rule]]:
    """Return the rule classes."""
    from .rules import HalfPrecisionNorm, OversizedTensor

    return (OversizedTensor, HalfPrecisionNorm)


@hookimpl
def shardlint_collectors() -> Iterable[Any]:
    """Return the collectors."""
    from .collector import AcmeLazyBuffers

    return (AcmeLazyBuffers(),)


@hookimpl
def shardlint_contracts(query: ContractQuery) -> Contract | None:
    """Return the contract of Acme's own models, None for all others."""
    from .contracts import contract_for

    return contract_for(query)


@hookimpl
def shardlint_reporters() -> Mapping[str, Any]:
    """Return the output formats."""
    from .reporter import write_tally

    return {"acme-tally": write_tally}
