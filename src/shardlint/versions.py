"""
The versions that matter: which are installed, in which range each library was tried, and what older ones limit.

The ranges stand here and nowhere else; `pyproject.toml`, the README and docs/versions.md are checked against them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from packaging.version import InvalidVersion, Version

SHOWN = ("torch", "transformers", "safetensors", "accelerate", "peft", "numpy")
TRIED: Mapping[str, tuple[str, str]] = {"torch": ("2.6.0", "2.14.1"), "transformers": ("4.48.3", "5.24.0")}
"""The oldest and the newest release of each library that this version of shardlint was tried with."""

# Library, the release from which on it is otherwise, and what is so below it.
_LIMITS = (
    ("transformers", "5.0", "weights that bitsandbytes packs, and loads that decode, are not planned nor compared"),
    ("transformers", "5.0", "a tie that a class makes by its own _tie_weights is not seen once it is broken"),
    ("transformers", "5.5.4", "some architectures cannot be built from config.json alone; give the live model then"),
    ("torch", "2.12", "which original tensor the shards of one FSDP2 parameter belong to is unknown"),
)


def installed_versions() -> dict[str, str]:
    """Return the installed version of each library that matters; what is not installed is left out."""
    found = {}
    for name in SHOWN:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def untried(versions: Mapping[str, object]) -> list[str]:
    """Return a sentence for each library whose version in `versions` is outside of its tried range."""
    said = []
    for name, (oldest, newest) in TRIED.items():
        version = _parsed(versions.get(name))
        if version is not None and not _release(oldest) <= version.release <= _release(newest):
            said.append(f"{name} {versions[name]} is outside of what was tried, {oldest} to {newest}")
    return said


def limits(versions: Mapping[str, object]) -> list[str]:
    """Return a sentence for each thing that the versions in `versions` limit, with the release that lifts it."""
    said = []
    for name, since, what in _LIMITS:
        version = _parsed(versions.get(name))
        if version is not None and version < Version(since):
            said.append(f"{name} below {since}: {what}")
    return said


def _parsed(text: object) -> Version | None:
    try:
        return Version(str(text)) if text else None
    except InvalidVersion:
        return None


def _release(text: str) -> tuple[int, ...]:
    return Version(text).release
