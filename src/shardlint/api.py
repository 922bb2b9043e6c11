"""
Lint from Python: the same engine as the command line's, without a command line.

    report = shardlint.lint(model, checkpoint="checkpoints/base", load_info=info)
    report.raise_for_errors()
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attrs import frozen

from ._version import __version__
from .engine.effect import effect_of
from .engine.runner import Agree, SelectedRule, evaluate, sort_findings
from .engine.suppressions import Suppressed, apply_suppressions
from .engine.wishes import undone
from .facts import Facts, FrozenDict, Section
from .lint_options import LintOptions, check_config, check_facts
from .ranks.job import DEFAULT_TIMEOUT, lint_in_job
from .ranks.rows import text_of
from .report.from_facts import collection_findings, guarded_coverage, job_findings, metadata_of
from .report.model import Report, untrusted, verdict_of
from .rule import Cost, Severity
from .target import LiveTarget, Target, check_target, completed

if TYPE_CHECKING:
    from .collect import CollectOptions
    from .config import Settings
    from .contract import Contract, DataPipeline
    from .engine.selection import Layer, Selection
    from .plugins.registry import Registry
    from .weights import ExternalState


@frozen(kw_only=True)
class LintRun:
    """A report, and what became of every suppression on the way to it."""

    report: Report
    suppressed: Suppressed


@frozen(kw_only=True)
class Session:
    """
    Everything that is decided before facts are there: settings, packs, selected rules, fail level.

    `fail_level` is None when no severity fails a run. `today` is the day by which suppressions expire.
    """

    settings: Settings
    registry: Registry
    selection: Selection
    rules: tuple[SelectedRule, ...]
    fail_level: Severity | None
    heavy: bool
    today: date
    suppress: bool = True

    @property
    def wants_values(self) -> bool:
        """Whether some selected rule needs statistics of values, which take a pass over all tensors."""
        return any(Section.VALUES in rule.rule.needs for rule in self.rules)

    @property
    def has_heavy_rules(self) -> bool:
        """Whether some rule is evaluated that reads every weight."""
        return any(rule.rule.cost is Cost.HEAVY and (self.heavy or rule.explicit) for rule in self.rules)

    def _settings_used(self) -> FrozenDict:
        """Which files shaped the verdict, and how, for the head of every report."""
        settings = self.settings
        effect = effect_of(self.registry.rules, settings.layers, settings.suppressions if self.suppress else ())
        return FrozenDict(
            files=tuple(str(path) for path in settings.files),
            not_used=settings.warnings,
            fail_level=settings.get("lint.fail-level"),
            contract=settings.contract is not None,
            options=tuple(settings.options),
            renames=len(settings.checkpoint.renames),
            **effect,
        )

    def asked(self) -> dict[str, str]:
        """What the ranks of a job must be asked alike, as texts: rules with severity and options, packs, settings."""
        asked = {f"rule {item.rule.code}": _how(item) for item in self.rules}
        asked |= {f"pack {pack.name}": pack.version for pack in self.registry.packs if pack.status.value == "loaded"}
        settings = self.settings.values.leaves()
        asked |= {path: text_of(value.plain()) for path, value in settings if not path.startswith(_OF_A_NODE)}
        level = "never" if self.fail_level is None else self.fail_level.value
        return asked | {"heavy": text_of(self.heavy), "fail level": level, "suppressions": text_of(self.suppress)}

    def run(self, facts: Facts, live: LiveTarget | None = None, agree: Agree | None = None) -> LintRun:
        """
        Evaluate the selected rules over `facts`, apply suppressions, judge.

        `agree` is that of `evaluate`: the ranks of a job agree which heavy rules run.
        """
        from .introspect.attributes import gc_paused

        started = time.perf_counter()
        with gc_paused():
            evaluation = evaluate(facts, self.rules, heavy=self.heavy, live=live, agree=agree)
        coverage, faults = guarded_coverage(facts)
        engine = (
            *faults,
            *self.registry.diagnostics,
            *self.selection.diagnostics,
            *collection_findings(facts),
            *job_findings(facts),
        )
        suppressions = self.settings.suppressions if self.suppress else ()
        outcomes = evaluation.outcomes
        engine += undone(
            self.selection.wishes,
            outcomes,
            self.rules,
            heavy=self.heavy,
            facts=facts,
            findings=evaluation.findings,
        )
        found = (*evaluation.findings, *engine)
        hidden = apply_suppressions(found, suppressions, outcomes, self.today, self.registry.rules)
        # Evaluation sorts, suppression keeps the order: a hundred thousand findings are not sorted twice for nothing.
        added = bool(engine or hidden.diagnostics)
        visible = sort_findings((*hidden.visible, *hidden.diagnostics)) if added else hidden.visible
        findings = self.selection.adjust(visible)
        blocked_by = untrusted(outcomes, findings)
        report = Report(
            tool=f"shardlint {__version__}",
            target=facts.target,
            verdict=verdict_of(findings, blocked_by, self.fail_level),
            fail_level=self.fail_level,
            findings=findings,
            suppressed=hidden.suppressed,
            outcomes=outcomes,
            blocked_by=blocked_by,
            metadata=metadata_of(facts, self.registry, self._settings_used()),
            coverage=coverage,
            seconds=time.perf_counter() - started,
        )
        return LintRun(report=report, suppressed=hidden)


_OF_A_NODE = ("packs.local", "output")
"""Settings that may differ between the nodes of a job: where a pack lies, and where reports are written."""


def _how(selected: SelectedRule) -> str:
    """How a selected rule is evaluated, as a text."""
    severity = selected.rule.severity if selected.severity is None else selected.severity
    options = "" if selected.failure is not None else repr(selected.rule.options)
    return f"{severity.value}{' by name' if selected.explicit else ''} {options}".strip()


def load_registry(settings: Settings, *, require: Iterable[str] = (), disable: Iterable[str] = ()) -> Registry:
    """Load the packs that `settings` and the caller want. Raises `PackUsageError` for settings nobody can follow."""
    from .plugins.manager import load_packs

    packs = settings.packs
    return load_packs(disable=(*packs.disable, *disable), require=(*packs.require, *require), local=packs.local)


def open_session(
    settings: Settings,
    *,
    registry: Registry | None = None,
    layers: Sequence[Layer] = (),
    fail_level: Severity | Literal["never"] | None = None,
    heavy: bool = False,
    today: date | None = None,
    suppress: bool = True,
) -> Session:
    """
    Decide everything that can be decided without facts. What is None is taken from `settings`.

    `layers` come above those of the settings. Raises `SelectionError` for selectors that name nothing and
    `ConfigError` for options that a rule does not take.
    """
    from .config import rule_options
    from .engine.selection import select_from

    registry = load_registry(settings) if registry is None else registry
    selection = select_from(registry, (*settings.layers, *layers))
    level = settings.fail_level if fail_level is None else fail_level
    return Session(
        settings=settings,
        registry=registry,
        selection=selection,
        rules=selection.to_run(rule_options(settings, registry.rules)),
        fail_level=level if isinstance(level, Severity) else None,
        heavy=heavy or settings.heavy,
        today=today or date.today(),
        suppress=suppress,
    )


def lint_facts(
    facts: Facts,
    settings: Settings | None = None,
    registry: Registry | None = None,
    *,
    layers: Sequence[Layer] = (),
    heavy: bool = False,
    live: LiveTarget | None = None,
    today: date | None = None,
) -> Report:
    """
    Lint facts that are there already; nothing here imports torch. Without settings the defaults hold.

    Raises `TypeError` for anything but facts.
    """
    check_facts(facts)
    chosen = settings_of(False) if settings is None else settings
    return open_session(chosen, registry=registry, layers=layers, heavy=heavy, today=today).run(facts, live).report


def lint(
    model: Any = None,
    *,
    checkpoint: str | Path | None = None,
    optimizer: Any = None,
    contract: Contract | None = None,
    load_info: Mapping[str, Any] | None = None,
    data: DataPipeline | None = None,
    trace: Any = None,
    external: ExternalState | None = None,
    config: Settings | str | Path | Literal[False] | None = None,
    select: Iterable[str] = (),
    extend_select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    severity: Mapping[str, str] | None = None,
    heavy: bool = False,
    name: str = "",
    rank_timeout: float = DEFAULT_TIMEOUT,
) -> Report:
    """
    Lint a live model (a module, or a `Target` that says everything) and return the report.

    `external` describes tensors outside the module (`shardlint.weights.ExternalState`).

    `trace` is what `with shardlint.trace(model, optimizer) as t:` gave: the rules of phase D7 check it.

    `config` is settings, the path of a file, False for none, or None for the nearest file above the working
    directory. `select`, `extend_select`, `ignore` and `severity` work as on the command line and beat the file.
    Findings never raise: call `report.raise_for_errors()`. Without a model and without a checkpoint there is nothing
    to judge: that is a `TargetError`.

    In a running distributed job every rank must call it: the ranks are compared, and each gets the same report. A rank
    waits `rank_timeout` seconds for the others, and then raises `shardlint.ranks.job.JobError` naming those that
    failed or did not come. With 0 this rank lints for itself.

    Raises `TypeError` for arguments of the wrong kind, `ConfigError` and `SelectionError` for settings and selectors
    that cannot be followed.
    """
    target = _target(
        model,
        Target(
            checkpoint=checkpoint,
            optimizer=optimizer,
            contract=contract,
            load_info=load_info,
            data=data,
            trace=trace,
            external=external,
            name=name,
        ),
    )
    return lint_target(
        target,
        LintOptions(
            config=config,
            select=select,
            extend_select=extend_select,
            ignore=ignore,
            severity=severity,
            heavy=heavy,
            rank_timeout=rank_timeout,
        ),
    )


def lint_target(target: Target, options: LintOptions) -> Report:
    """Lint what `target` says by `options`, as `lint` does, and raise what `lint` raises."""
    settings = settings_of(options.config, (target.checkpoint,))
    registry = load_registry(settings)
    session = open_session(settings, registry=registry, layers=(options.layer,), heavy=options.heavy)
    collecting = collect_options(settings, registry, values=session.wants_values)
    return lint_in_job(
        lambda: (_collect(target, collecting), live_of(target, settings, options.rank_timeout)),
        lambda facts, live, agree: session.run(facts, live, agree).report,
        options.rank_timeout,
        asked=session.asked() | {"checkpoint": text_of(target.checkpoint is not None)},
    ).report


def snapshot(
    model: Any = None,
    *,
    checkpoint: str | Path | None = None,
    optimizer: Any = None,
    contract: Contract | None = None,
    load_info: Mapping[str, Any] | None = None,
    data: DataPipeline | None = None,
    trace: Any = None,
    external: ExternalState | None = None,
    source: Mapping[str, Any] | None = None,
    config: Settings | str | Path | Literal[False] | None = None,
    name: str = "",
) -> Facts:
    """
    Collect the facts of a live model (a module or a `Target`) without judging them.

    `source` says where the model comes from, in plain values, which stay with its inventory (`facts.model.source`).
    """
    target = _target(
        model,
        Target(
            checkpoint=checkpoint,
            optimizer=optimizer,
            contract=contract,
            load_info=load_info,
            data=data,
            trace=trace,
            external=external,
            source=source,
            name=name,
        ),
    )
    settings = settings_of(config, (target.checkpoint,))
    return _collect(target, collect_options(settings, load_registry(settings)))


def settings_of(
    config: Settings | str | Path | Literal[False] | None, inspected: Iterable[str | Path | None] = ()
) -> Settings:
    """
    Settings from what `lint` takes as `config`; those that lie in what is `inspected` are not looked up.

    Raises `ConfigError` for a file with mistakes, else `TypeError`.
    """
    from .config import load_settings

    check_config(config)
    if config is None or config is False:
        return load_settings(Path.cwd(), isolated=config is False, inspected=inspected)
    if isinstance(config, (str, Path)):
        return load_settings(Path.cwd(), explicit=Path(config))
    return config


def live_of(target: Target, settings: Settings, rank_timeout: float = 0.0) -> LiveTarget:
    """What heavy rules may read of `target`. Without a `rank_timeout` they use their own."""
    return LiveTarget(
        model=target.model,
        checkpoint=None if target.checkpoint is None else Path(target.checkpoint).expanduser(),
        optimizer=target.optimizer,
        renames=settings.checkpoint.renames,
        external=target.external,
        rank_timeout=rank_timeout or None,
    )


def collect_options(
    settings: Settings,
    registry: Registry | None = None,
    *,
    contract: Contract | str | None = None,
    values: bool = True,
) -> CollectOptions:
    """How to collect by `settings`, with the contracts and collectors of the packs of `registry`."""
    from .collect.options import CollectOptions

    return CollectOptions(
        contract=contract,
        declared=settings.contract,
        declared_in="the configuration file" if settings.file is None else str(settings.file),
        packs=registry,
        expert_axes=settings.expert_axes,
        phases=settings.invariant_phases,
        renames=settings.checkpoint.renames,
        allow_overlay=settings.checkpoint.allow_overlay,
        values=values,
    )


def _target(model: Any, more: Target) -> Target:
    target = completed(model, more)
    check_target(target)
    return target


def _collect(target: Target, options: CollectOptions) -> Facts:
    from .collect import collect

    return collect(target, options)
