"""D706 parameter-without-gradient."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import EXPERT, GradientFacts, RuntimeFacts, TracedUnit
from shardlint.names import counted, glob_matches, listed, pattern_of

from ._modalities import Modalities
from ._traces import after_backward

_NUMBERED_EXPERT = re.compile(r"experts?\.[0-9]+(?:\.|\Z)")
_WHY_CUT = (
    "A reentrant checkpoint runs its region without a graph unless one of the region's inputs needs a gradient. With "
    "frozen embeddings none does, so nothing in the region trains, and torch says so in one warning at most."
)
_WHAT_CUT = (
    "Use the non-reentrant checkpoint (`use_reentrant=False`), or make the inputs of the region need gradients "
    "(`enable_input_require_grads()`)."
)


@frozen(kw_only=True)
class UnusedOptions:
    """`unused`: globs over names of parameters that are not expected to get gradients (heads that no loss uses)."""

    unused: tuple[str, ...] = ()


@frozen
class _Parameter:
    """
    A parameter's gradient, the unit that holds it, and the gradients that are reported in one finding with it.

    `missing` says that it had none although one was to be expected, `cut` that a reentrant checkpoint cut it off,
    `unasked` why no traced step could have given it one.
    """

    gradient: GradientFacts
    unit: TracedUnit | None
    together: Sequence[GradientFacts]
    missing: bool
    cut: bool
    unasked: str = ""

    @property
    def name(self) -> str:
        """The parameter's name."""
        return self.gradient.fqn


class ParameterWithoutGradient(Rule):
    """
    A trainable parameter got no gradient in any traced step.

    ## What it does
    Looks at the gradients at each traced optimizer step (without one: after each backward). Parameters that had none at
    any look are reported, by unit when none of the unit's had one; also when the backward gave them one that no
    optimizer saw, because synchronisation was left switched off or gradients were cleared before the step. It is an
    error when a reentrant checkpoint region cut them off; these are reported also when the traced block raised, as the
    backward of a loss without a graph does. Experts that were not called while others of their block were are left out,
    and so is what the option `unused` names. A sub-model for images, video or audio that was not called because no
    traced step gave such an input is not evaluated, and neither is a model of which other tensors stood in for the
    parameters (`torch.func.functional_call`).

    ## Why it is unsafe
    The parameter does not train, though it is meant to: a branch that is never taken, an output that no loss reads, a
    `detach()` or a `no_grad()` in between. DDP without `find_unused_parameters` waits for it.

    ## What to do
    Freeze it if it is not meant to train; else find where the graph ends between it and the loss.
    """

    code = "D706"
    name = "parameter-without-gradient"
    phase = Phase.D7
    severity = Severity.WARNING
    needs = (Section.RUNTIME,)
    options_type = UnusedOptions

    noun = "trainable parameter"

    def subjects(self, facts: Facts) -> Iterator[_Parameter]:
        runtime = facts.require(Section.RUNTIME)
        asked = [gradient for gradient in runtime.gradients if not self._declared(gradient)]
        missing = [gradient for gradient in asked if not runtime.reached(gradient)]
        missing = _without_idle_experts(missing, runtime.gradients, _experts(facts))
        left, numbers = _by_unit(missing), {id(gradient) for gradient in missing}
        units = runtime.unit_by_name()
        cut = {unit.name for unit in runtime.units if unit.cut_off}
        if not (runtime.raised and any(cut.intersection(gradient.units) for gradient in missing)):
            after_backward(runtime)
        whole = {name: len(items) for name, items in runtime.gradients_by_unit().items()}
        modalities, functional = Modalities(facts), _functional(runtime)
        for gradient in asked:
            name = gradient.units[0] if gradient.units else ""
            together = left.get(name, ())
            alone = name not in units or len(together) < 2 or len(together) != whole[name]
            yield _Parameter(
                gradient,
                units.get(name),
                (gradient,) if alone else together,
                missing=id(gradient) in numbers,
                cut=bool(cut.intersection(gradient.units)),
                unasked=functional or (modalities.not_given(gradient) if id(gradient) in numbers else ""),
            )

    def judge(self, parameter: _Parameter, facts: Facts) -> Iterator[Finding]:
        gradient, unit, together = parameter.gradient, parameter.unit, parameter.together
        runtime = facts.require(Section.RUNTIME)
        if runtime.reached(gradient):
            return
        if runtime.raised and not parameter.cut:
            after_backward(runtime)  # when nothing at all has a graph, the backward itself raises
        if parameter.unasked and not parameter.cut:
            raise NotEvaluated(parameter.unasked)
        if not parameter.missing or gradient is not together[0]:
            return  # an expert without tokens, or told with the first one of its unit
        if unit is not None and len(together) > 1:
            yield self._unit(unit, together)
        else:
            yield self._parameter(gradient, unit)

    def _declared(self, gradient: GradientFacts) -> bool:
        names = gradient.aliases or (gradient.fqn,)
        return any(glob_matches(glob, name) for glob in self.options.unused for name in names)

    def _unit(self, unit: TracedUnit, items: Sequence[GradientFacts]) -> Finding:
        names = [gradient.fqn for gradient in items]
        return self._report(
            unit.name,
            SubjectKind.UNIT,
            f"none of its {counted(len(names), 'trainable parameter')} got a gradient ({listed(names)})",
            unit,
            items,
        )

    def _parameter(self, gradient: GradientFacts, unit: TracedUnit | None) -> Finding:
        return self._report(gradient.fqn, SubjectKind.TENSOR, "got no gradient in any traced step", unit, [gradient])

    def _report(
        self, subject: str, kind: SubjectKind, text: str, unit: TracedUnit | None, items: Sequence[GradientFacts]
    ) -> Finding:
        cut = unit is not None and unit.cut_off
        idle = all(gradient.module_ran is False for gradient in items)
        lost = all(gradient.accumulated for gradient in items)
        reason = "; its region of a reentrant checkpoint had no input that needs one" if cut else ""
        reason = reason or ("; the backward gave it one, which was gone when the optimizer stepped" if lost else "")
        reason = reason or ("; no module that holds it was called" if idle else "")
        return self.finding(
            subject=subject,
            kind=kind,
            owner=unit.name if unit is not None else None,
            severity=Severity.ERROR if cut else Severity.WARNING,
            message=text + reason,
            evidence={"parameters": [gradient.fqn for gradient in items], "called": not idle, "cut_off": cut},
            why=_WHY_CUT if cut else None,
            remediation=_WHAT_CUT if cut else None,
        )


def _functional(runtime: RuntimeFacts) -> str:
    """Why gradients cannot be seen where every forward ran with other tensors, empty where some did not."""
    steps = list(runtime.training_steps())
    functional = bool(steps) and all(step.functional for step in steps)
    return "other tensors stood in for the parameters in every forward: their gradients are not seen" * functional


def _by_unit(gradients: list[GradientFacts]) -> dict[str, list[GradientFacts]]:
    """The gradients by the first unit that holds them; those of no unit under the empty name."""
    left: dict[str, list[GradientFacts]] = {}
    for gradient in gradients:
        left.setdefault(gradient.units[0] if gradient.units else "", []).append(gradient)
    return left


def _experts(facts: Facts) -> set[str]:
    if facts.sharding is None:
        return set()
    return {record.fqn for record in facts.sharding.parameters if record.domain == EXPERT}


def _without_idle_experts(
    missing: list[GradientFacts], every: tuple[GradientFacts, ...], experts: set[str]
) -> list[GradientFacts]:
    """Leave out experts without tokens: not called, while another of the same block got gradients."""
    busy = {block for gradient in every if (block := _block(gradient.fqn)) and gradient.present}

    def idle(gradient: GradientFacts) -> bool:
        if gradient.module_ran:
            return False
        block = _block(gradient.fqn)
        return bool(gradient.fqn in experts or (block and block in busy))

    return [gradient for gradient in missing if not idle(gradient)]


def _block(fqn: str) -> str:
    """What comes before the number of an expert, with what comes after it; empty for what is not a numbered expert."""
    match = _NUMBERED_EXPERT.search(fqn)
    if match is None:
        return ""
    return f"{fqn[: match.start()]}{pattern_of(fqn[match.start() :])}"
