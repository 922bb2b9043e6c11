"""D520 adapter-coverage."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.wrapper_names import PEFT_PREFIXES, adapted_module
from shardlint.facts import CheckpointFacts, ModelFacts
from shardlint.names import closest, counted
from shardlint_rules._files import READ_FILES


@frozen
class _Change:
    """
    A module that the adapter changes, by these keys.

    `modules` are those of the model, `lost` all that it does not have; `prefix` what to remove and to add so that it
    has them all, None when nothing does.
    """

    name: str
    keys: tuple[str, ...]
    modules: set[str]
    lost: tuple[str, ...]
    prefix: tuple[str, str] | None


class AdapterCoverage(Rule):
    """
    Keys of an adapter name modules that the live model does not have.

    ## What it does
    Takes from every key of the adapter the module that it changes, without the prefix that PEFT puts before it, and
    looks that module up in the live tree. When all would be found under one other prefix, says which.

    ## Why it is unsafe
    Adapter weights whose module is not found are skipped. The model runs as if it had never been adapted, and the
    metrics are those of the base model.

    ## What to do
    Load the adapter into the model class that it was trained with, or rename its keys.
    """

    code = "D520"
    name = "adapter-coverage"
    phase = Phase.D5
    severity = Severity.ERROR
    needs = (Section.CHECKPOINT, Section.MODEL)
    tags = (READ_FILES,)

    noun = "module"

    def subjects(self, facts: Facts) -> Iterator[_Change]:
        changed = _changed_modules(facts.require(Section.CHECKPOINT))
        modules = _module_names(facts.require(Section.MODEL)) if changed else set()
        lost = tuple(name for name in changed if name not in modules)
        prefix = _other_prefix(lost, modules) if lost and len(lost) == len(changed) else None
        for name, keys in changed.items():
            yield _Change(name, tuple(keys), modules, lost, prefix)

    def judge(self, subject: _Change, facts: Facts) -> Iterator[Finding]:
        if subject.name in subject.modules:
            return
        if subject.prefix is None:
            yield self._lost(subject)
        elif subject.name == subject.lost[0]:
            yield self._renamed(subject.lost, *subject.prefix)

    def _renamed(self, lost: tuple[str, ...], removed: str, added: str) -> Finding:
        """One finding in place of one for each module."""
        many = counted(len(lost), "module is", "modules are")
        return self.finding(
            subject=removed or added,
            kind=SubjectKind.PATTERN,
            message=f"the adapter's {many} not in the model; all would be with "
            f"{added or 'no prefix'} in place of {removed or 'no prefix'}",
            evidence={"removed": removed, "added": added, "modules": sorted(lost)[:50]},
        )

    def _lost(self, change: _Change) -> Finding:
        near = closest(change.name, change.modules, 1)
        return self.finding(
            subject=change.keys[0],
            kind=SubjectKind.KEY,
            message=f"{change.keys[0]} changes the module {change.name}, which the model does not have"
            + (f"; the nearest is {near[0]}" if near else ""),
            evidence={"module": change.name, "keys": change.keys, "nearest": near},
        )


def _module_names(model: ModelFacts) -> set[str]:
    names = {alias for module in model.modules for alias in module.aliases}
    return names | {name.removeprefix(PEFT_PREFIXES[0]) for name in names}


def _changed_modules(checkpoint: CheckpointFacts) -> dict[str, list[str]]:
    """Return the modules that the adapter's keys change, with their keys."""
    files = {file.name for file in checkpoint.files if file.kind == "adapter"}
    changed: dict[str, list[str]] = {}
    for entry in (*checkpoint.entries, *checkpoint.extra_entries):
        module = adapted_module(entry.key)
        if entry.file in files and module is not None:
            changed.setdefault(module, []).append(entry.key)
    return changed


def _other_prefix(lost: tuple[str, ...], modules: set[str]) -> tuple[str, str] | None:
    """Return what to take away from and put before all names so that each is a module, None when nothing does."""
    parts = lost[0].split(".")
    for cut in range(min(4, len(parts))):
        removed = ".".join(parts[:cut]) + "." if cut else ""
        rest = lost[0].removeprefix(removed)
        for module in modules:
            if module == rest or module.endswith(f".{rest}"):
                added = module.removesuffix(rest)
                if all(name.startswith(removed) and added + name.removeprefix(removed) in modules for name in lost):
                    return removed, added
    return None
