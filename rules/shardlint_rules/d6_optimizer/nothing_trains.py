"""D610 nothing-trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.coverage import TargetClass, coverage_of
from shardlint.facts import AdapterFacts, ModelFacts, OptimizerFacts
from shardlint.names import counted, owner_of

_WARNED = "only the parameters of normalisation layers train"


@frozen
class _Question:
    """What is asked of the whole: `name` tells which question, `adapter` or `tensor` what about."""

    name: str
    adapter: AdapterFacts | None = None
    tensor: str = ""


class NothingTrains(Rule):
    """
    An optimizer was built, and the training it is for cannot happen.

    ## What it does
    Looks at the model and its optimizers as a whole. It is an error when no parameter of the model needs a gradient,
    when all groups are empty, when the learning rate of every group is zero and no schedule will raise it, when the
    adapter in use is frozen while another one trains, and when a part that the checkpoint has nothing for is frozen, so
    that it stays as random as it began. It is a warning when nothing but normalisation layers trains.

    ## Why it is unsafe
    Every step runs, costs what a step costs, and changes nothing. The loss stays where it is, which looks like a
    learning rate that is too small.

    ## What to do
    Load adapters with `is_trainable=True`, activate the adapter that is to be trained, unfreeze what is new, and build
    the optimizer from the parameters that need a gradient.
    """

    code = "D610"
    name = "nothing-trains"
    phase = Phase.D6
    severity = Severity.ERROR
    needs = (Section.OPTIMIZER, Section.MODEL)
    noun = "question"

    def subjects(self, facts: Facts) -> Iterator[_Question]:
        optimizer, model = facts.require(Section.OPTIMIZER), facts.require(Section.MODEL)
        if not optimizer.parameters:
            return
        yield _Question("gradients")
        yield _Question("groups")
        yield _Question("learning rates")
        if any(parameter.requires_grad for parameter in optimizer.parameters):
            yield _Question("norms")
            yield from (_Question(adapter.name, adapter=adapter) for adapter in model.adapters)
            yield from (_Question(name, tensor=name) for name in _fresh(facts))

    def judge(self, question: _Question, facts: Facts) -> Iterable[Finding]:
        optimizer, model = facts.require(Section.OPTIMIZER), facts.require(Section.MODEL)
        if question.adapter is not None:
            return self.adapter(question.adapter, model)
        if question.tensor:
            return self.fresh(question.tensor, model)
        if question.name == "gradients":
            return self.gradients(optimizer, model)
        if question.name == "groups":
            return self.groups(optimizer, facts)
        return self.rates(optimizer) if question.name == "learning rates" else self.norms(optimizer, model)

    def gradients(self, optimizer: OptimizerFacts, model: ModelFacts) -> Iterator[Finding]:
        if any(parameter.requires_grad for parameter in optimizer.parameters):
            return
        frozen_adapters = [adapter.name for adapter in model.adapters if adapter.active]
        which = f"; the adapter {frozen_adapters[0]!r} is in use and frozen" if frozen_adapters else ""
        number = counted(len(optimizer.parameters), "parameter")
        yield self.whole(
            f"an optimizer was given, and none of the model's {number} needs a gradient{which}", "gradients"
        )

    def groups(self, optimizer: OptimizerFacts, facts: Facts) -> Iterator[Finding]:
        if optimizer.held:
            return
        reasons = [instance.partitioned for instance in optimizer.optimizers if instance.partitioned]
        if reasons or optimizer.unread:
            raise NotEvaluated("; ".join([*reasons, *optimizer.unread]))
        if facts.environment.world_size > 1:
            raise NotEvaluated("other ranks may hold what this one does not")
        yield self.whole(
            f"all {counted(len(optimizer.groups), 'parameter group')} of the optimizers are empty", "groups"
        )

    def rates(self, optimizer: OptimizerFacts) -> Iterator[Finding]:
        rates = [(group.number("lr"), group.number("initial_lr") or 0.0) for group in optimizer.groups if group.size]
        if rates and all(rate == 0.0 and initial == 0.0 for rate, initial in rates):
            yield self.whole("the learning rate is 0 in every group, and no schedule keeps an initial one", "rates")

    def norms(self, optimizer: OptimizerFacts, model: ModelFacts) -> Iterator[Finding]:
        modules = {module.fqn: module for module in model.modules}
        trained = [parameter for parameter in optimizer.parameters if parameter.requires_grad]
        owners = (modules.get(owner_of(parameter.fqn) or "") for parameter in trained)
        only = all(owner is not None and "norm" in owner.qualified_type.lower() for owner in owners)
        if only and len(trained) < len(optimizer.parameters) and not model.adapters:
            names = [parameter.fqn for parameter in trained[:3]]
            yield self.finding(
                subject="model",
                kind=SubjectKind.MODEL,
                severity=Severity.WARNING,
                message=f"{_WARNED}: {', '.join(names)}, {len(trained)} of {len(optimizer.parameters)}",
                key="norms",
            )

    def adapter(self, adapter: AdapterFacts, model: ModelFacts) -> Iterator[Finding]:
        if not adapter.active or not adapter.keys or _trains(adapter, model):
            return
        others = [other.name for other in model.adapters if other.base == adapter.base and _trains(other, model)]
        if others and not any(other.active for other in model.adapters if other.name in others):
            yield self.finding(
                subject=adapter.name,
                kind=SubjectKind.CONFIG,
                message=f"the adapter {adapter.name!r} is in use and frozen, {others[0]!r} trains and is not in use",
                evidence={"active": adapter.name, "trains": others},
                key="adapter",
            )

    def fresh(self, name: str, model: ModelFacts) -> Iterator[Finding]:
        tensor = model.tensor_by_name()[name]
        if not tensor.requires_grad:
            yield self.finding(
                subject=tensor.fqn,
                message="frozen, and nothing stored gives it: it can never become anything but what it began as",
                owner=owner_of(tensor.fqn),
                key="fresh",
            )

    def whole(self, message: str, key: str) -> Finding:
        return self.finding(subject="model", kind=SubjectKind.MODEL, message=message, key=key)


def _trains(adapter: AdapterFacts, model: ModelFacts) -> bool:
    names = model.tensor_by_name()
    return any(key in names and names[key].requires_grad for key in adapter.keys)


def _fresh(facts: Facts) -> Iterator[str]:
    """The parameters that the checkpoint gives nothing for, as coverage tells; none when nobody knows."""
    model = facts.require(Section.MODEL)
    if facts.plan is None and (facts.load is None or not facts.load.reported):
        return
    coverage = coverage_of(facts)
    names = model.tensor_by_name()
    for name, kind in coverage.targets.items():
        wanted = kind in (TargetClass.NEW_HEAD, TargetClass.UNSUPPORTED_MISSING_TARGET)
        if wanted and name in names and names[name].is_parameter:
            yield name
