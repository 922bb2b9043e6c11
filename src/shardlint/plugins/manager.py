"""Load every pack by itself and put what they bring into one registry, refusing what two of them claim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from attrs import evolve

from ..diagnostics import PackFault, PackOrigin, duplicate, pack_failed
from ..names import did_you_mean
from ..rule import Finding
from .discovery import PackSource, installed_sources, local_source, normalized
from .loading import BUILTIN_PACK, LoadedPack, is_builtin, load_pack
from .registry import PackState, PackStatus, RegisteredReporter, RegisteredRule, Registry

if TYPE_CHECKING:
    from packaging.requirements import Requirement

NO_PACKS = (
    "no rule packs were found, not even shardlint's own, so nothing could be checked: "
    "shardlint is not properly installed. Install it with `pip install shardlint` (`pip install -e .` in a checkout)"
)


class PackUsageError(ValueError):
    """A setting about packs that cannot be followed: an unknown name to disable, a malformed requirement."""


class NoPacksError(RuntimeError):
    """No pack was found, or shardlint's own is missing, so that a run would check nothing."""


def load_packs(
    *,
    disable: Iterable[str] = (),
    require: Iterable[str] = (),
    local: Iterable[str | Path] = (),
    entry_points: Iterable[metadata.EntryPoint] | None = None,
    base: Path | None = None,
) -> Registry:
    """
    Find, load and register packs.

    `disable` are names of packs whose code is not to run, `require` names of packs or distributions with an optional
    version specifier (`acme>=1.2`), `local` files and folders (relative to `base`, the folder of the config file, by
    default the working directory). `entry_points` replaces those of the installed distributions.

    A pack that fails is an SL002 finding in the registry, and every other pack is there all the same. Raises
    `PackUsageError` for settings that cannot be followed, `NoPacksError` when there is nothing to load.
    """
    requirements = [_requirement(text) for text in require]
    unwanted = tuple(dict.fromkeys(disable))
    sources = _builtin_first(installed_sources(entry_points))
    if entry_points is None and not any(is_builtin(source.origin) for source in sources):
        raise NoPacksError(NO_PACKS)
    sources += [local_source((base or Path.cwd()) / path) for path in local]
    if not sources:
        raise NoPacksError(NO_PACKS)
    packs = [load_pack(source) for source in sources if source.origin.pack not in unwanted]
    disabled = [_disabled(source) for source in sources if source.origin.pack in unwanted]
    # A local pack says its name only once it has run; what it brings is left out all the same.
    disabled += [
        evolve(pack.status(), status=PackState.DISABLED, rules=0) for pack in packs if pack.origin.pack in unwanted
    ]
    packs = [pack for pack in packs if pack.origin.pack not in unwanted]
    _check_disabled(unwanted, [*packs], disabled)
    return _registry(packs, disabled, requirements)


def _builtin_first(sources: list[PackSource]) -> list[PackSource]:
    return sorted(sources, key=lambda source: not is_builtin(source.origin))


def _disabled(source: PackSource) -> PackStatus:
    origin = source.origin
    return PackStatus(
        name=origin.pack,
        dist=origin.dist,
        version=origin.version,
        status=PackState.DISABLED,
        location=source.location,
        issues_url=origin.issues_url,
    )


def _check_disabled(unwanted: Sequence[str], packs: Sequence[LoadedPack], disabled: Sequence[PackStatus]) -> None:
    known = [*(pack.origin.pack for pack in packs), *(status.name for status in disabled)]
    for name in unwanted:
        if name not in known:
            text = f"cannot disable pack {name!r}: no such pack{did_you_mean(name, known)}"
            raise PackUsageError(f"{text}; the packs are {', '.join(sorted(set(known)))}")
    if not packs:
        raise PackUsageError(f"every pack is disabled ({', '.join(unwanted)}), so nothing could be checked")


def _registry(
    packs: Sequence[LoadedPack], disabled: Sequence[PackStatus], requirements: Sequence[Requirement]
) -> Registry:
    findings = _refuse_shared_names(packs)
    rules, clashes = _unclaimed([rule for pack in packs for rule in pack.rules])
    reporters = _reporters(packs)
    failures = [failure for pack in packs for failure in pack.failures]
    statuses = [*(pack.status() for pack in packs), *disabled]
    return Registry(
        rules=tuple(sorted(rules, key=lambda rule: (rule.phase, rule.code))),
        packs=tuple(statuses),
        diagnostics=(*failures, *findings, *clashes, *_unmet(requirements, statuses)),
        collectors=tuple(collector for pack in packs for collector in pack.collectors),
        reporters=MappingProxyType(reporters),
        providers=tuple(provider for pack in packs for provider in pack.providers),
    )


def _refuse_shared_names(packs: Sequence[LoadedPack]) -> list[Finding]:
    """Two packs of one name cannot be told apart: neither is kept, except for shardlint's own, whose name it is."""
    findings: list[Finding] = []
    for name in dict.fromkeys(pack.origin.pack for pack in packs):
        same = [pack for pack in packs if pack.origin.pack == name]
        intruders = [pack for pack in same if not is_builtin(pack.origin)]
        if len(same) < 2 and not (name == BUILTIN_PACK and intruders):
            continue
        keeper = "shardlint's own pack keeps it" if name == BUILTIN_PACK else "neither is loaded"
        finding = duplicate("pack name", name, [pack.origin for pack in same], keeper)
        findings.append(finding)
        for pack in intruders:
            pack.refuse(finding.message)
    return findings


def _unclaimed(rules: Sequence[RegisteredRule]) -> tuple[list[RegisteredRule], list[Finding]]:
    """The rules whose code and name nobody else claims, and SL008 for the rest. Built-in rules keep theirs."""
    findings: list[Finding] = []
    refused: set[int] = set()
    claims: tuple[tuple[str, Callable[[RegisteredRule], str]], ...] = (
        ("rule code", lambda rule: rule.code),
        ("rule name", lambda rule: rule.name),
    )
    for what, key in claims:
        by_value: dict[str, list[RegisteredRule]] = {}
        for rule in rules:
            by_value.setdefault(key(rule), []).append(rule)
        for value, same in by_value.items():
            if len(same) > 1:
                keepers = [rule for rule in same if is_builtin(rule)][:1]
                outcome = "the built-in rule keeps it" if keepers else "none of these rules is loaded"
                findings.append(duplicate(what, value, same, outcome))
                refused.update(id(rule) for rule in same if rule not in keepers)
    return [rule for rule in rules if id(rule) not in refused], findings


def _reporters(packs: Sequence[LoadedPack]) -> dict[str, RegisteredReporter]:
    """Output formats by name. The first pack keeps a name; a later claim fails that pack."""
    formats: dict[str, RegisteredReporter] = {}
    for pack in packs:
        for reporter in pack.reporters:
            first = formats.setdefault(reporter.name, reporter)
            if first is not reporter:
                error = PackFault(f"output format {reporter.name!r} is claimed by {first.label} already")
                pack.failures.append(pack_failed(pack.origin, "shardlint_reporters()", error))
    return formats


def _requirement(text: str) -> Requirement:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise PackUsageError(
            f"expected a pack name with an optional version such as 'acme>=1.2', got {text!r}: {reason}"
        ) from error
    if requirement.url or requirement.extras or requirement.marker:
        raise PackUsageError(f"expected a pack name with an optional version such as 'acme>=1.2', got {text!r}")
    return requirement


def _unmet(requirements: Iterable[Requirement], statuses: Sequence[PackStatus]) -> list[Finding]:
    findings = []
    for requirement in requirements:
        wanted = normalized(requirement.name)
        known = [status for status in statuses if wanted in _names(status)]
        problem = _problem(requirement, known, statuses)
        if problem:
            status = known[0] if known else PackStatus(name=requirement.name, status=PackState.FAILED)
            origin = PackOrigin(pack=status.name, dist=status.dist, version=status.version)
            findings.append(pack_failed(origin, "require", PackFault(problem)))
    return findings


def _names(status: PackStatus) -> set[str]:
    return {normalized(name) for name in (status.name, status.dist) if name}


def _problem(requirement: Requirement, known: Sequence[PackStatus], statuses: Sequence[PackStatus]) -> str:
    if not known:
        near = did_you_mean(requirement.name, [status.name for status in statuses])
        return f"required as {str(requirement)!r} and not installed{near}; install it, or do not require it"
    status = known[0]
    if status.status is PackState.DISABLED:
        return f"required as {str(requirement)!r} and disabled; decide for one of the two"
    if not requirement.specifier or _satisfies(requirement, status.version):
        return ""
    if not status.version:
        return f"required as {str(requirement)!r}, but a local pack has no version; require {status.name!r} alone"
    return f"required as {str(requirement)!r}, found {status.version}; install a version that fits"


def _satisfies(requirement: Requirement, version: str) -> bool:
    from packaging.version import InvalidVersion

    try:
        return requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False
