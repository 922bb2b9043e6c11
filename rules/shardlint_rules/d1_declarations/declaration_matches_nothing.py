"""D104 declaration-matches-nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.contract_globs import matches_any, meant_across_dots
from shardlint.analysis.coverage import retained_report
from shardlint.analysis.keys import Candidates, root_declaration
from shardlint.facts import ContractFacts, ModelFacts
from shardlint.names import counted

_LIBRARY = "transformers."


class DeclarationMatchesNothing(Rule):
    """
    A glob or name that the contract or the model's class declares matches nothing in the live model.

    ## What it does
    Matches every glob of the contract (exclusions of training-only targets, optional probes, lazy buffers, parameters
    of modalities, producers and consumers of shared state) against the live names; the modules that a class outside
    Transformers keeps in float32; and the modules that the quantisation leaves out. Patterns of keys to ignore while
    loading are not judged, because they describe old checkpoints; nor are the lists of Transformers' own classes, which
    whole families share.

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

    def check(self, facts: Facts) -> Iterator[Finding]:
        model = facts.require(Section.MODEL)
        tensors = tuple(alias for tensor in model.tensors for alias in tensor.aliases)
        modules = tuple(alias for module in model.modules for alias in module.aliases)
        if facts.contract:
            for where, glob, names in _contract_globs(facts.contract, tensors, modules):
                if not matches_any(glob, names):
                    yield self._finding(facts.contract.source, where, glob, names)
            buffers = tuple(alias for tensor in model.buffers for alias in tensor.aliases)
            for glob in facts.contract.recipes:
                if not matches_any(glob, buffers):
                    yield self._finding(facts.contract.source, "recipes", glob, buffers)
            yield from self._sources(facts, facts.contract)
        yield from self._class_names(model, tensors)

    def _sources(self, facts: Facts, contract: ContractFacts) -> Iterator[Finding]:
        """Globs over checkpoint keys can be judged only where there are keys."""
        globs = contract.inference_only_sources
        keys = {entry.key for entry in facts.checkpoint.entries} if facts.checkpoint else set()
        report = retained_report(facts)
        keys |= set(report.unexpected) if report else set()
        if globs and facts.checkpoint is None and report is None:
            raise NotEvaluated("inference_only_sources cannot be matched: there is no checkpoint and no load report")
        for glob in globs:
            if not matches_any(glob, keys):
                yield self._finding(contract.source, "inference_only_sources", glob, tuple(sorted(keys)))

    def _class_names(self, model: ModelFacts, tensors: tuple[str, ...]) -> Iterator[Finding]:
        root = root_declaration(model)
        if root is not None and not root.qualified_type.startswith(_LIBRARY):
            library = [
                declaration for declaration in model.declarations if declaration.qualified_type.startswith(_LIBRARY)
            ]
            inherited = {
                name
                for inherited_from in library
                for name in (*inherited_from.keep_in_fp32, *inherited_from.keep_in_fp32_strict)
            }
            for pattern in dict.fromkeys((*root.keep_in_fp32, *root.keep_in_fp32_strict)):
                if pattern not in inherited and not _found(pattern, tensors):
                    yield self._finding(root.qualified_type, "modules to keep in float32", pattern, tensors)
        quantisation = model.config.get("quantization_config") if model.config else None
        skipped = quantisation.get("modules_to_not_convert") if isinstance(quantisation, Mapping) else None
        for pattern in skipped or ():
            if not _found(str(pattern), tensors):
                yield self._finding("quantization_config", "modules_to_not_convert", str(pattern), tensors)

    def _finding(self, source: str, where: str, glob: str, names: tuple[str, ...]) -> Finding:
        near = Candidates(names).near(glob)
        hint = f"; the nearest are {', '.join(near)}" if near else ""
        if wider := meant_across_dots(glob, names):
            hint = f"; `*` is one segment of a name: {wider!r} would match"
        return self.finding(
            subject=glob,
            kind=SubjectKind.PATTERN,
            message=f"{where} of {source}: {glob!r} matches none of {counted(len(names), 'name')}{hint}",
            evidence={"declared_by": source, "declaration": where, "nearest": near},
            key=where,
        )


def _contract_globs(
    contract: ContractFacts, tensors: tuple[str, ...], modules: tuple[str, ...]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
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
