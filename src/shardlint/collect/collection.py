"""Put the sections together: each collector by itself, absent sections with their reason, failures written down."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, get_type_hints

from attrs import evolve

from ..analysis.renames import rename_facts
from ..contract import LIFECYCLE_PHASES, Contract, Recipe
from ..diagnostics import error_text, last_frame
from ..facts import (
    EMPTY,
    PACK_SECTION,
    CollectionProblem,
    Environment,
    Facts,
    FileProblem,
    FrozenDict,
    LoadFacts,
    RuntimeFacts,
    Section,
)
from ..introspect.attributes import gc_paused
from ..introspect.plain import encodable, plain_mapping
from ..introspect.walk import Walk, walk
from ..loading.load_report import load_facts
from ..target import Target, TargetError, expanded
from ..versions import installed_versions
from .contracts import ResolvedContract, contract_facts, data_facts, find_contract
from .flat_parameters import with_originals
from .model import config_of, model_facts
from .numerics import numeric_environment
from .options import CollectOptions, PackCollector

if TYPE_CHECKING:
    from ..loading.loader import ConfigRefusedError
    from .sharding import OwnershipTables

NO_CHECKPOINT = "no checkpoint was given"


class Assembly:
    """One collection: the target, what was found on the way, and the facts as they grow."""

    def __init__(self, target: Target, options: CollectOptions) -> None:
        self.target = target
        self.options = options
        self.pack_collectors = options.packs.collectors if options.packs else ()
        self.walk: Walk | None = None
        self.tables: OwnershipTables | None = None
        self.recipes: tuple[Recipe, ...] = ()
        self.refused: ConfigRefusedError | None = None
        self.absent: dict[str, str] = {}
        self.problems: list[CollectionProblem] = []

    def run(self) -> Facts:
        """Collect section by section."""
        build = self.options.build
        _check_model(self.target.model)
        facts = Facts(target=self.target.name, build=build)
        if build is None:
            self.absent[Section.BUILD.value] = "shardlint did not call a builder"
        with gc_paused():
            facts = self._model_and_contract(facts)
        facts = self._section(facts, Section.SHARDING, self._sharding)
        if facts.model is not None and facts.sharding is not None:
            facts = evolve(facts, model=with_originals(facts.model, facts.sharding))
        facts = self._section(facts, Section.OPTIMIZER, self._optimizer)
        facts = self._section(facts, Section.LOAD, self._load)
        facts = self._section(facts, Section.CHECKPOINT, self._checkpoint)
        facts = self._section(facts, Section.PLAN, lambda: self._plan(facts))
        facts = self._with_refused_config(facts)
        facts = self._section(facts, Section.VALUES, lambda: self._values(facts))
        facts = self._declared_recipes(facts)
        facts = self._section(facts, Section.DATA, self._data)
        facts = self._section(facts, Section.RUNTIME, self._traced)
        self.absent[Section.RANKS.value] = "the ranks of a job were not compared"
        facts = self._packs(evolve(facts, environment=environment()))
        missing = {section.value: self.absent.get(section.value, "") for section in Section if not facts.has(section)}
        missing |= {name: reason for name, reason in self.absent.items() if name.startswith(PACK_SECTION)}
        absent = FrozenDict({name: reason for name, reason in missing.items() if reason})
        return evolve(facts, absent=absent, problems=tuple(self.problems))

    def _model_and_contract(self, facts: Facts) -> Facts:
        model = self.target.model
        if model is not None:
            self.walk = walk(model)
        config = config_of(self.walk.root) if self.walk else None
        resolved = self._find_contract(config)
        self.recipes = resolved.contract.recipes if resolved.contract else ()
        if self.walk is None:
            self.absent[Section.MODEL.value] = "no model was given"
        else:
            walked = self.walk
            section = model_facts(walked, placeholders=resolved.placeholders)
            facts = evolve(facts, model=evolve(section, source=plain_mapping(self.target.source) or EMPTY))
        # The model's facts are taken before any checker runs, and are what the checkers were called on.
        contract = contract_facts(resolved, self.walk, phases=self._phases())
        if contract is None:
            self.absent[Section.CONTRACT.value] = resolved.reason
        return evolve(facts, contract=contract)

    def _phases(self) -> tuple[str, ...]:
        """The phases of invariants to evaluate: those that were chosen, else all with a trace."""
        traced = LIFECYCLE_PHASES if self.target.trace is not None else ()
        return self.options.phases or traced

    def _find_contract(self, config: FrozenDict | None) -> ResolvedContract:
        options = self.options
        named = options.contract if isinstance(options.contract, str) else None
        given = options.contract if isinstance(options.contract, Contract) else self.target.contract
        return find_contract(
            config,
            given=None if named else given,
            named=named,
            declared=options.declared,
            declared_in=options.declared_in,
            registry=options.packs,
            has_model=self.walk is not None,
        )

    def _section(self, facts: Facts, section: Section, collect: Callable[[], Any]) -> Facts:
        try:
            value = collect()
        except TargetError:
            raise
        except Exception as error:
            self._failed(section.value, section.value, error)
            return facts
        return evolve(facts, **{section.value: value})

    def _sharding(self) -> Any:
        if self.walk is None:
            self.absent[Section.SHARDING.value] = "no model was given"
            return None
        from .sharding import collect_ownership, facts_of

        registered = {
            id(pack.collector): pack
            for pack in self.pack_collectors
            if callable(getattr(pack.collector, "collect_units", None))
        }
        self.tables = collect_ownership(
            self.walk,
            optimizer=self.target.optimizer,
            expert_axes=self.options.expert_axes,
            collectors=[pack.collector for pack in registered.values()],
            failed=lambda collector, error: self._pack_failed(registered[id(collector)], error),
        )
        return facts_of(self.tables)

    def _optimizer(self) -> Any:
        reason = "no optimizer was given" if self.target.optimizer is None else "no model was given"
        if self.target.optimizer is None or self.walk is None:
            self.absent[Section.OPTIMIZER.value] = reason
            return None
        if self.tables is None:
            self.absent[Section.OPTIMIZER.value] = "the collector of the section sharding failed"
            return None
        from ..checkpoint.optimizer_state import stored_optimizers
        from .optimizer import optimizer_facts

        facts = optimizer_facts(self.tables, self.target.optimizer)
        if self.target.checkpoint is None:
            return facts
        return evolve(facts, stored=stored_optimizers(expanded(self.target.checkpoint)))

    def _load(self) -> LoadFacts | None:
        try:
            value = load_facts(self.target.load_info, self.walk.root if self.walk else None)
        except (TypeError, ValueError) as error:
            raise TargetError(str(error)) from None
        if value is None:
            self.absent[Section.LOAD.value] = "no load report was retained"
        return value

    def _checkpoint(self) -> Any:
        if self.target.checkpoint is None:
            self.absent[Section.CHECKPOINT.value] = NO_CHECKPOINT
            return None
        from ..checkpoint.folder import CheckpointError, collect_checkpoint

        try:
            checkpoint = collect_checkpoint(expanded(self.target.checkpoint))
        except CheckpointError as error:
            raise TargetError(str(error)) from None
        renames = rename_facts(self.options.renames, [entry.key for entry in checkpoint.entries])
        return evolve(checkpoint, overlay_declared=self.options.allow_overlay, renames=renames)

    def _plan(self, facts: Facts) -> Any:
        if facts.checkpoint is None:
            self.absent[Section.PLAN.value] = self.absent[Section.CHECKPOINT.value]
            return None
        from ..analysis.contract_globs import exclusions_of
        from ..loading.declared import declared_targets
        from ..loading.plan import ConfigRefusedError, PlanUnknownError, collect_plan

        try:
            return collect_plan(
                facts.checkpoint,
                model=self.target.model,
                model_facts=facts.model,
                renames=self.options.renames,
                exclusions=exclusions_of(facts.contract),
                declared=declared_targets(self.walk, facts.contract, self.target.external),
            )
        except PlanUnknownError as error:
            self.absent[Section.PLAN.value] = str(error)
            self.refused = error if isinstance(error, ConfigRefusedError) else None
            return None

    def _with_refused_config(self, facts: Facts) -> Facts:
        """Write down, as a problem of the folder, that nothing can be built from the checkpoint's configuration."""
        if self.refused is None or facts.checkpoint is None:
            return facts
        detail, key = encodable(self.refused.detail), encodable(self.refused.field) or None
        problem = FileProblem(file="config.json", kind="config-refused", detail=detail, key=key)
        return evolve(facts, checkpoint=evolve(facts.checkpoint, problems=(*facts.checkpoint.problems, problem)))

    def _values(self, facts: Facts) -> Any:
        if self.tables is None:
            reason = "no model was given" if self.walk is None else "the collector of the section sharding failed"
            self.absent[Section.VALUES.value] = reason
            return None
        if not self.options.values:
            self.absent[Section.VALUES.value] = "values were not asked for"
            return None
        from .values import values_facts

        checkpoint = self.target.checkpoint
        values = values_facts(self.tables, facts, None if checkpoint is None else expanded(checkpoint))
        if values is None:
            self.absent[Section.VALUES.value] = "every tensor is on the meta device"
        return values

    def _declared_recipes(self, facts: Facts) -> Facts:
        """Compare buffers with the contract's recipes, after everything else was looked at: they are foreign code."""
        if not self.recipes or self.walk is None or facts.values is None or facts.contract is None:
            return facts
        from .recipes import compared_with_recipes

        derived, problems = compared_with_recipes(self.recipes, self.walk, facts.values.derived)
        contract = evolve(facts.contract, problems=(*facts.contract.problems, *problems))
        return evolve(facts, values=evolve(facts.values, derived=derived), contract=contract)

    def _data(self) -> Any:
        if self.target.data is None:
            self.absent[Section.DATA.value] = "no data pipeline was given"
            return None
        return data_facts(self.target.data)

    def _traced(self) -> RuntimeFacts | None:
        trace = self.target.trace
        if trace is None:
            self.absent[Section.RUNTIME.value] = "no step was traced (shardlint.trace)"
            return None
        runtime = trace if isinstance(trace, RuntimeFacts) else getattr(trace, "runtime", None)
        if isinstance(runtime, RuntimeFacts):
            return runtime
        raise TargetError(f"expected what shardlint.trace() gave as the trace, got {type(trace).__name__}")

    def _packs(self, facts: Facts) -> Facts:
        written: dict[str, PackCollector] = {}
        for pack in self.pack_collectors:
            try:
                value = pack.collect(self.target, self.walk, facts)
                if value is None:
                    continue
                earlier = written.setdefault(pack.section, pack)
                if earlier is not pack and earlier.label != pack.label:
                    raise ValueError(f"the pack {earlier.label} writes the section {pack.section} too ({earlier.name})")
                facts = _with_section(facts, pack.section, value)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # SystemExit, and the private ones of torch, pytest, asyncio
                self._pack_failed(pack, error)
        return facts

    def _pack_failed(self, pack: PackCollector, error: BaseException) -> None:
        self._failed(pack.name, pack.section, error, pack=pack.label, root=pack.root)

    def _failed(self, name: str, section: str, error: BaseException, *, pack: str = "", root: str = "") -> None:
        problem = CollectionProblem(
            collector=name,
            section=section,
            error_type=type(error).__name__,
            error=encodable(error_text(error)),
            pack=pack,
            frame=last_frame(error, root),
        )
        self.problems.append(problem)
        self.absent[section] = f"its collector {name} failed: {problem.error_type}: {problem.error}"


def _check_model(model: Any) -> None:
    if model is None:
        return
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        raise TargetError(f"expected a torch.nn.Module as the model, got {type(model).__name__}")


def _with_section(facts: Facts, section: str, value: Any) -> Facts:
    """The facts with a section that a pack collected. Raises `TypeError` or `ValueError` for a value that is none."""
    if not section.startswith(PACK_SECTION):
        return evolve(facts, **{section: _checked(section, value)})
    if not isinstance(value, Mapping):
        raise TypeError(f"the section {section!r} takes a mapping, the collector returned {type(value).__name__}")
    pack = section.removeprefix(PACK_SECTION)
    return evolve(facts, packs=FrozenDict({**facts.packs, pack: {**facts.packs.get(pack, {}), **value}}))


def _checked(section: str, value: Any) -> Any:
    """The section's facts, if they are of the section's class. Raises `TypeError` or `ValueError`."""
    known = {member.value for member in Section}
    if section not in known:
        raise ValueError(f"there is no section {section!r}; expected one of {', '.join(sorted(known))}")
    kinds = [kind for kind in _members(get_type_hints(Facts)[section]) if kind is not type(None)]
    if not isinstance(value, tuple(kinds)):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"the section {section!r} takes {names}, the collector returned {type(value).__name__}")
    return value


def _members(hint: Any) -> tuple[type, ...]:
    return getattr(hint, "__args__", None) or (hint,)


def environment() -> Environment:
    """Versions of what is installed and matters, and the place in a running distributed job."""
    from .._version import __version__

    versions = {"shardlint": __version__, "python": sys.version.split()[0], **installed_versions()}
    rank, world_size = _place()
    return Environment(versions=FrozenDict(versions), numerics=numeric_environment(), rank=rank, world_size=world_size)


def _place() -> tuple[int, int]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()
