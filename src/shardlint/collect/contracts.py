"""The `contract` section: find the contract, evaluate what it declares about the live model, write it down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from ..analysis.contract_globs import matches_any
from ..analysis.model_config import architectures_of
from ..contract import Contract, ContractError, ContractQuery, DataPipeline, Replacement, contract_from_mapping
from ..diagnostics import error_text
from ..facts import (
    EMPTY,
    ContractFacts,
    ContractProblem,
    DataFacts,
    DataSemanticsFacts,
    DataStageFacts,
    FrozenDict,
    ProbeFacts,
    ReplacementFacts,
    SharedStateFacts,
)
from ..introspect.importing import ImportProblem, import_object
from ..introspect.plain import encodable
from ..introspect.type_globs import matches_type
from ..names import natural_key
from ..target import TargetError
from .invariants import evaluate_invariants

if TYPE_CHECKING:
    from ..introspect.walk import Walk
    from .options import Packs


@frozen(kw_only=True)
class ResolvedContract:
    """
    What the lookup found: a contract with its source, the problems on the way, or why there is none.

    `replaces` is the pack whose contract would have been taken otherwise.
    """

    contract: Contract | None = None
    source: str = ""
    replaces: str = ""
    problems: tuple[ContractProblem, ...] = ()
    reason: str = ""

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The contract's globs of classes that must not be left."""
        return self.contract.placeholders if self.contract else ()


def find_contract(
    config: FrozenDict | None,
    *,
    given: Contract | None = None,
    named: str | None = None,
    declared: Mapping[str, Any] | None = None,
    declared_in: str = "the configuration file",
    registry: Packs | None = None,
    has_model: bool = True,
) -> ResolvedContract:
    """
    Find the contract: the one handed over, the one named on the command line, the one in the configuration file, then
    what the packs answer for `config.model_type` and each of `config.architectures`. The first wins.

    Raises `TargetError` when `named` cannot be imported.
    """
    if given is not None:
        return _in_place(_checked(given, "Target.contract"), config, registry)
    if named:
        return _in_place(load_contract(named, config), config, registry)
    if declared:
        return _in_place(_from_mapping(declared, declared_in), config, registry)
    return _from_packs(config, registry, has_model)


def _in_place(resolved: ResolvedContract, config: FrozenDict | None, registry: Packs | None) -> ResolvedContract:
    """Add whose contract `found` replaces: packs are asked all the same, so that nobody misses theirs unawares."""
    other = _from_packs(config, registry, has_model=True)
    return attrs.evolve(resolved, replaces=other.source if other.contract else "")


def load_contract(text: str, config: FrozenDict | None = None) -> ResolvedContract:
    """
    The contract that `package.module:name` or `file.py:name` names: a `Contract`, or a provider that takes the query.

    Raises `TargetError` when there is nothing of that name.
    """
    try:
        imported = import_object(text)
    except ImportProblem as problem:
        raise TargetError(f"contract {text!r}: {problem}") from None
    if isinstance(imported, Contract):
        return ResolvedContract(contract=imported, source=text)
    if not callable(imported):
        return _problem(text, f"expected a Contract or a callable that returns one, got {type(imported).__name__}")
    query = next(queries(config), ContractQuery(key="", kind="model_type", config=config or EMPTY))
    try:
        result = imported(query) if _takes_argument(imported) else imported()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return _problem(text, f"the provider raised {type(error).__name__}: {error_text(error)}")
    return _checked(result, text)


def _takes_argument(function: Any) -> bool:
    import inspect

    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # no signature to be had
        return True
    return True


def _checked(result: object, source: str) -> ResolvedContract:
    if isinstance(result, Contract):
        return ResolvedContract(contract=result, source=source)
    return _problem(source, f"expected a shardlint.contract.Contract, got {type(result).__name__}")


def _problem(where: str, error: str) -> ResolvedContract:
    problem = ContractProblem(where=where, error=encodable(error))
    return ResolvedContract(source=where, problems=(problem,))


def _from_mapping(declared: Mapping[str, Any], where: str) -> ResolvedContract:
    try:
        return ResolvedContract(contract=contract_from_mapping(declared, f"{where}: contract"), source=where)
    except ContractError as error:
        problems = tuple(ContractProblem(where=place, error=encodable(text)) for place, text in error.problems)
        return ResolvedContract(source=where, problems=problems)


def queries(config: FrozenDict | None) -> Iterator[ContractQuery]:
    """The questions to the packs in their order: the model type, then each architecture."""
    config = config or EMPTY
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type:
        yield ContractQuery(key=model_type, kind="model_type", config=config)
    for name in architectures_of(config):
        yield ContractQuery(key=name, kind="architecture", config=config)


_NAMELESS = {
    True: "the model names no model type or architecture",
    False: "there is no model whose type a pack could be asked for",
}


def _from_packs(config: FrozenDict | None, registry: Packs | None, has_model: bool) -> ResolvedContract:
    asked: list[str] = []
    problems: list[ContractProblem] = []
    if registry is None:
        return ResolvedContract(reason="no contract was given, and no packs were asked for one")
    for query in queries(config):
        asked.append(query.key)
        for answer in registry.contracts(query):
            if isinstance(answer.contract, Contract):
                source = f"pack {answer.label} for {query.key}"
                return ResolvedContract(contract=answer.contract, source=source, problems=tuple(problems))
            problem = ContractProblem(where=f"pack {answer.label}", error=encodable(answer.error))
            if problem not in problems:  # a provider that fails is asked again with the next key
                problems.append(problem)
    if problems:
        return ResolvedContract(source=problems[0].where, problems=tuple(problems))
    who = f"no pack has a contract for {', '.join(asked)}" if asked else _NAMELESS[has_model]
    return ResolvedContract(reason=f"no contract was given, and {who}")


def contract_facts(
    resolved: ResolvedContract, walk: Walk | None, *, phases: Sequence[str] = ()
) -> ContractFacts | None:
    """
    Write the contract down, with what became of its invariants and replacements on the walked model.

    None when there is neither a contract nor a problem. Without a model (`walk` is None) invariants are not evaluated.
    `phases` are those of the invariants to evaluate, all but runtime when it is empty.
    """
    contract = resolved.contract
    if contract is None:
        return ContractFacts(source=resolved.source, problems=resolved.problems) if resolved.problems else None
    invariants, problems = evaluate_invariants(contract.invariants, walk.root if walk else None, phases=phases)
    return ContractFacts(
        source=resolved.source,
        replaces=resolved.replaces,
        name=contract.name,
        probes=tuple(_like(ProbeFacts, probe) for probe in contract.probes),
        invariants=invariants,
        training_only_targets=contract.training_only_targets,
        logical_shapes=contract.logical_shapes,
        inference_only_sources=contract.inference_only_sources,
        data=_like(DataSemanticsFacts, contract.data) if contract.data else None,
        shared_state=tuple(_like(SharedStateFacts, state) for state in contract.shared_state),
        topology=tuple(FrozenDict(name=item.name, **item.fields) for item in contract.topology),
        parity_cases=tuple(FrozenDict(name=item.name, **item.fields) for item in contract.parity_cases),
        replacements=tuple(_replacement(replacement, walk) for replacement in contract.replacements),
        placeholders=contract.placeholders,
        lazy_buffers=contract.lazy_buffers,
        ties=contract.ties,
        recipes=tuple(recipe.buffer for recipe in contract.recipes),
        problems=(*resolved.problems, *problems),
    )


def _like(kind: type[Any], source: Any) -> Any:
    return kind(**{field.name: getattr(source, field.name) for field in attrs.fields(kind)})


def _replacement(declared: Replacement, walk: Walk | None) -> ReplacementFacts:
    matched: Iterable[str] = ()
    if walk is not None:
        matched = (
            module.fqn
            for module in walk.modules
            if not module.wrapper
            and matches_type(declared.replacement, type(module.module))
            and (matches_any(declared.pattern, module.names) or matches_type(declared.pattern, type(module.module)))
        )
    names = tuple(sorted(matched, key=natural_key))
    return ReplacementFacts(pattern=declared.pattern, replacement=declared.replacement, matched=names)


def data_facts(pipeline: DataPipeline) -> DataFacts:
    """Write the data pipeline down."""
    return DataFacts(
        stages=tuple(DataStageFacts(name=stage.name, fields=stage.fields) for stage in pipeline.stages),
        runtime_fields=pipeline.runtime_fields,
        labels_shifted=pipeline.labels_shifted,
        processor_revision=pipeline.processor_revision,
    )
