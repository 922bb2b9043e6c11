"""`shardlint lint`: check a target, report what is wrong with it."""

from __future__ import annotations

import functools
from datetime import date
from typing import TYPE_CHECKING, Literal

import click
from attrs import evolve, frozen

from ...report.model import Verdict
from ...rule import Severity
from ..base import EXIT_INTERRUPTED, EXIT_OK, Command, option
from ..heavy_options import FiniteRange, WeightChoices, shown_progress, weight_options
from ..interrupts import Interruption
from ..options import as_of_option, color_option, load, pack_options, packs_of, selection_options, stacked
from ..output import outputs_of, report_options, reporters_of, stdout_to_stderr, write_outputs
from ..targets import TargetRequest, external_option, obtain, target_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...api import Session
    from ...config import Settings
    from ...engine.runner import Agree
    from ...facts import Facts
    from ...plugins.registry import Registry
    from ...report.model import Report
    from ...report.options import ReportOptions
    from ...target import LiveTarget
    from ..output import Output

_EXAMPLES = (
    ("shardlint lint train.py:build_model --checkpoint ckpt/", "the model that a function builds, and its checkpoint"),
    ("shardlint lint mypackage.models:build --arg size=7b", "a builder with an argument"),
    ("shardlint lint ckpt/", "a checkpoint alone: headers and index, no tensor is read"),
    ("shardlint lint train.py:build_model --checkpoint ckpt/ --heavy", "every element against the checkpoint too"),
    ("shardlint lint export/ --reference ckpt/", "one checkpoint against another, element by element"),
    ("shardlint lint facts.json --select D5 --severity D516=warning", "facts of an earlier run, some rules"),
    ("torchrun --nproc-per-node 8 -m shardlint lint train.py:build_model", "every rank of a job; rank 0 reports"),
    ("shardlint lint train.py:build_model --output-format text --output-format json:report.json", "two reports"),
)


@frozen(kw_only=True)
class _Choices:
    """What the user chose, beside the target and the configuration."""

    select: tuple[str, ...]
    extend_select: tuple[str, ...]
    ignore: tuple[str, ...]
    severity: tuple[str, ...]
    heavy: bool
    fail_level: str | None
    exit_zero: bool
    as_of: date | None
    no_suppressions: bool
    show_suppressed: bool
    output_format: tuple[str, ...]
    color: str
    rank_timeout: float
    quiet: bool
    verbose: int
    timing: bool
    collapse: bool


_verdict_options = stacked(
    option("Rules", "--heavy", is_flag=True, help="Evaluate heavy rules too, which read every weight."),
    option(
        "Verdict",
        "--fail-level",
        type=click.Choice(["info", "warning", "error", "never"]),
        metavar="LEVEL",
        help="Findings of this severity and above give exit status 1: info, warning, error, or never. "
        "[default: that of the configuration, else error]",
    ),
    option("Verdict", "--exit-zero", is_flag=True, help="Exit with 0 instead of 1; 2 stays 2."),
    as_of_option,
    option("Suppressions", "--no-suppressions", is_flag=True, help="Show findings that the configuration suppresses."),
    option("Suppressions", "--show-suppressed", is_flag=True, help="List suppressed findings with their reasons."),
)

_output_options = stacked(
    option(
        "Output",
        "--output-format",
        multiple=True,
        metavar="NAME[:FILE]",
        help="text, concise, json or a format of a pack, to standard output or a file. Repeatable. [default: text]",
    ),
    color_option,
    option("Output", "-q", "--quiet", is_flag=True, help="Only the line that sums up."),
    option("Output", "-v", "--verbose", count=True, help="Everything, and tracebacks of errors."),
    option("Output", "--timing", is_flag=True, help="The time that each rule took."),
    option("Output", "--collapse/--no-collapse", default=True, help="Join findings over layers and experts, or not."),
)


_job_options = stacked(
    option(
        "Job",
        "--rank-timeout",
        type=FiniteRange(min=0),
        default=120.0,
        show_default=True,
        metavar="SECONDS",
        help="Under torchrun: how long a rank waits for the others. 0: each rank lints for itself.",
    ),
)


@click.command("lint", cls=Command, examples=_EXAMPLES)
@target_options
@external_option
@selection_options
@weight_options
@_verdict_options
@_output_options
@_job_options
@pack_options
def command(
    *,
    target: str,
    checkpoint: str | None,
    contract: str | None,
    external: str | None,
    arg: tuple[str, ...],
    config: str | None,
    isolated: bool,
    require_pack: tuple[str, ...],
    disable_pack: tuple[str, ...],
    reference: str | None,
    allow_cast: tuple[str, ...],
    sample: float,
    max_memory: int | None,
    weight_report: str | None,
    replicas: Literal["digest", "full"] | None,
    **choices: object,
) -> int:
    """
    Lint a model, its checkpoint, or both.

    TARGET is a builder (package.module:callable or path/file.py:callable) that returns a module or a
    shardlint.Target, a checkpoint folder or file, a facts file, or - for facts from standard input.
    """
    chosen = _Choices(**choices)  # type: ignore[arg-type] # click gives what the options above declare
    if chosen.quiet and chosen.verbose:
        raise click.UsageError("--quiet and --verbose exclude each other")
    settings = load(config, isolated, (target, checkpoint, reference))
    with stdout_to_stderr():
        registry = packs_of(settings, require_pack, disable_pack)
    outputs = outputs_of(chosen.output_format, settings, reporters_of(registry))
    weights = WeightChoices(
        reference=reference,
        allow_cast=allow_cast,
        sample=sample,
        max_memory=max_memory,
        weight_report=weight_report,
        replicas=replicas,
    )
    session = _session(chosen, settings, registry, heavy=chosen.heavy or weights.asks)
    return _linted(TargetRequest(target, checkpoint, contract, arg, external), session, weights, chosen, outputs)


def _session(chosen: _Choices, settings: Settings, registry: Registry, *, heavy: bool) -> Session:
    from ...api import open_session
    from ...engine.selection import flag_layer

    return open_session(
        settings,
        registry=registry,
        layers=(flag_layer(chosen.select, chosen.extend_select, chosen.ignore, chosen.severity),),
        fail_level=_fail_level(chosen.fail_level),
        heavy=heavy,
        today=chosen.as_of,
        suppress=not chosen.no_suppressions,
    )


def _linted(
    request: TargetRequest, session: Session, weights: WeightChoices, chosen: _Choices, outputs: Sequence[Output]
) -> int:
    """Lint with every rank of the job, write the report, and return the exit status."""
    from ...introspect.attributes import gc_paused
    from ...ranks.job import lint_in_job
    from ...ranks.rows import text_of

    with Interruption() as interruption:
        job = lint_in_job(
            functools.partial(_obtained, request, session, weights),
            lambda facts, live, agree: _judged(
                session,
                facts,
                weights.apply(facts, live, session.settings.checkpoint, chosen.rank_timeout),
                agree,
                interruption,
            ),
            chosen.rank_timeout,
            asked=session.asked() | weights.asked() | {"checkpoint": text_of(bool(request.checkpoint))},
        )
        options = _report_options(chosen)
        with gc_paused():
            job.show(lambda: write_outputs(job.report, outputs, options))
    if interruption.received:
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    return EXIT_OK if chosen.exit_zero and job.report.verdict is Verdict.FAIL else job.report.exit_status


def _obtained(request: TargetRequest, session: Session, weights: WeightChoices) -> tuple[Facts, LiveTarget | None]:
    weights.check_report()
    return obtain(request, session.registry, session.settings, values=session.wants_values)


def _judged(
    session: Session, facts: Facts, live: LiveTarget | None, agree: Agree | None, interruption: Interruption
) -> Report:
    if live is None or not session.has_heavy_rules:
        with stdout_to_stderr():
            return session.run(facts, live, agree).report
    interruption.watch()  # until the report is written
    with stdout_to_stderr(), shown_progress(evolve(live, stop=interruption.asked)) as limited:
        return session.run(facts, limited, agree).report


def _report_options(chosen: _Choices) -> ReportOptions:
    return report_options(
        color=chosen.color,
        verbosity=-1 if chosen.quiet else chosen.verbose,
        collapse=chosen.collapse,
        show_suppressed=chosen.show_suppressed,
        timing=chosen.timing,
    )


def _fail_level(text: str | None) -> Severity | Literal["never"] | None:
    return Severity(text) if text not in (None, "never") else "never" if text else None
