"""D104 declaration-matches-nothing."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.contract_globs import matches_any, meant_across_dots
from shardlint.analysis.coverage import retained_report
from shardlint.analysis.keys import Candidates
from shardlint.analysis.ties import outermost
from shardlint.facts import ContractFacts, ModelFacts, Unknown, known
from shardlint.names import counted

_LIBRARY = "transformers."
_RECIPE = "re:"


class DeclarationMatchesNothing(Rule):
    """
    A glob or name that the contract or the model's class declares matches nothing in the live model.

    ## What it does
    Matches every glob of the contract (exclusions of training-only targets, optional probes, lazy buffers, parameters
    of modalities, producers and consumers of shared state) against the live names; the modules that a class outside
    Transformers keeps in float32; and the names that the quantisation is told to leave out, under whichever setting, as
    the library matches them. A head that is quantised because such a list replaced the library's default is reported
    too. Globs of declared ties are D105's. Patterns of keys to ignore while
    loading are not judged, because they describe old checkpoints; nor are the lists of Transformers' own classes, which
    whole families share, or the expressions (`re:`) of compressed-tensors, which come from recipes for many models.

    ## Why it is unsafe
    A declaration that matches nothing has no effect, although its author believes that it has one. It is misspelt, or
    the names have changed beneath it.

    ## What to do
    Correct the declaration, or delete it. The finding names the nearest live names.
    """

    code = "D104"
    name = "declaration-matches-nothing"
    phase = Phase.D1
    severity = Severity.WARNING
    needs = (Section.MODEL,)
    related_config = ("contract",)

    noun = "declaration"

    def subjects(self, facts: Facts) -> Iterator[Declared]:
        model = facts.require(Section.MODEL)
        tensors = _Names(alias for tensor in model.tensors for alias in tensor.aliases)
        if facts.contract:
            yield from _of_contract(facts.contract, model, tensors)
            yield from _of_keys(facts, facts.contract)
        yield from _of_classes(model, tensors)
        yield from (
            Declared(name.name, name.setting, "quantization_config", tensors, matched=name.matched)
            for name in model.quantisation_skips
            if not name.name.startswith(_RECIPE)
        )
        yield from (Declared(head, "", "quantization_config", tensors) for head in model.quantised_heads)

    def judge(self, subject: Declared, facts: Facts) -> Iterable[Finding]:
        if not subject.where:
            return (self._quantised_head(subject.glob),)
        if subject.names is None:
            text = "there is no checkpoint and no load report"
            raise NotEvaluated(f"{subject.where} cannot be matched: {text}")
        return () if subject.is_found() else (self._finding(subject),)

    def _quantised_head(self, name: str) -> Finding:
        return self.finding(
            subject=name,
            kind=SubjectKind.MODULE,
            message=f"{name} is quantised: the library leaves it out by default, and the list of modules to leave out "
            "in quantization_config replaced that default",
            key="default",
        )

    def _finding(self, declared: Declared) -> Finding:
        candidates = declared.names.candidates if declared.names is not None else Candidates(())
        names = candidates.names
        near = candidates.near(declared.glob)
        hint = f"; the nearest are {', '.join(near)}" if near else ""
        if wider := meant_across_dots(declared.glob, names):
            hint = f"; `*` is one segment of a name: {wider!r} would match"
        return self.finding(
            subject=declared.glob,
            kind=SubjectKind.PATTERN,
            message=f"{declared.where} of {declared.source}: {declared.glob!r} matches none of "
            f"{counted(len(names), 'name')}{hint}",
            evidence={"declared_by": declared.source, "declaration": declared.where, "nearest": near},
            key=declared.where,
        )


class _Names:
    """Live names or stored keys, and what is like one of them, found once."""

    def __init__(self, names: Iterable[str]) -> None:
        self.all = tuple(names)

    @functools.cached_property
    def candidates(self) -> Candidates:
        return Candidates(self.all)


@frozen
class Declared:
    """
    One glob or name: where and by whom it is declared, and the names among which it looks (None: nobody knows them).

    `expression` tells that it is searched for as Transformers searches; `matched` is what the library found already.
    """

    glob: str
    where: str
    source: str
    names: _Names | None
    expression: bool = False
    matched: tuple[str, ...] | Unknown | None = None

    def is_found(self) -> bool:
        """Whether it matches something."""
        if self.matched is not None:
            return bool(known(self.matched))
        names = self.names.all if self.names is not None else ()
        return _found(self.glob, names) if self.expression else matches_any(self.glob, names)


def _of_contract(contract: ContractFacts, model: ModelFacts, tensors: _Names) -> Iterator[Declared]:
    modules = _Names(alias for module in model.modules for alias in module.aliases)
    for where, glob, names in _contract_globs(contract, tensors, modules):
        yield Declared(glob, where, contract.source, names)
    buffers = _Names(alias for tensor in model.buffers for alias in tensor.aliases)
    yield from (Declared(glob, "recipes", contract.source, buffers) for glob in contract.recipes)


def _of_keys(facts: Facts, contract: ContractFacts) -> Iterator[Declared]:
    """Globs over checkpoint keys can be judged only where there are keys."""
    if not contract.inference_only_sources:
        return
    report = retained_report(facts)
    keys = {entry.key for entry in facts.checkpoint.entries} if facts.checkpoint else set()
    keys |= set(report.unexpected) if report else set()
    names = None if facts.checkpoint is None and report is None else _Names(sorted(keys))
    for glob in contract.inference_only_sources:
        yield Declared(glob, "inference_only_sources", contract.source, names)


def _of_classes(model: ModelFacts, tensors: _Names) -> Iterator[Declared]:
    """What classes outside Transformers keep in float32, without what they inherit from Transformers."""
    library = [item for item in model.declarations if item.qualified_type.startswith(_LIBRARY)]
    inherited = {name for item in library for name in (*item.keep_in_fp32, *item.keep_in_fp32_strict)}
    for item in outermost(model.declarations):
        if item.qualified_type.startswith(_LIBRARY):
            continue
        for pattern in dict.fromkeys((*item.keep_in_fp32, *item.keep_in_fp32_strict)):
            if pattern not in inherited:
                yield Declared(pattern, "modules to keep in float32", item.qualified_type, tensors, expression=True)


def _contract_globs(contract: ContractFacts, tensors: _Names, modules: _Names) -> Iterator[tuple[str, str, _Names]]:
    yield from (("training_only_targets", glob, tensors) for glob in contract.training_only_targets)
    yield from (("probes", probe.glob, tensors) for probe in contract.probes if not probe.required)
    yield from (("lazy_buffers", glob, tensors) for glob in contract.lazy_buffers)
    for state in contract.shared_state:
        yield from ((f"shared_state {state.name}", glob, modules) for glob in (*state.producers, *state.consumers))
    for modality, globs in (contract.data.modality_parameters if contract.data else {}).items():
        yield from ((f"modality {modality}", str(glob), tensors) for glob in _each(globs))


def _each(value: str | Iterable[str]) -> Iterable[str]:
    return (value,) if isinstance(value, str) else value


def _found(pattern: str, names: Iterable[str]) -> bool:
    """Whether the loader's search for `pattern` (a regular expression or a module's name) finds a tensor."""
    try:
        compiled = re.compile(pattern)
    except re.error:
        return any(pattern in name for name in names)
    return any(compiled.search(name) for name in names)
