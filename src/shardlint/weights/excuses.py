"""Why live and stored tensors without a counterpart need none: what coverage says of them, as D501 judges it."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from ..analysis.coverage import SourceClass, TargetClass, planned_coverage
from ..analysis.wrapper_names import base_name
from ..facts import CheckpointFacts, ContractFacts, Facts, ModelFacts, PlanFacts
from ..rule import NotEvaluated

_TARGETS = {
    TargetClass.NEW_HEAD: "a head that the checkpoint's class does not have: nothing stored gives it",
    TargetClass.ADAPTER: "a tensor of the adapter, which the checkpoint of the base model does not hold",
    TargetClass.IGNORED_BY_CLASS: "its class expects no source for it",
    TargetClass.TRAINING_ONLY_INITIALIZATION: "declared as initialised by training",
}
_SOURCES = {
    SourceClass.UNUSED_HEAD: "a head that the live class does not have",
    SourceClass.CUT_BY_CONFIG: "a layer that the live configuration cuts off",
    SourceClass.BEYOND_CONFIG: "a layer beyond those that the configuration asks for",
    SourceClass.IGNORED_BY_CLASS: "its class ignores it",
    SourceClass.DERIVED_BUFFER: "a derived buffer, which is computed anew",
    SourceClass.INFERENCE_ONLY_EXCLUSION: "declared as unused in training",
    SourceClass.OTHER_STATE: "no part of the model",
}


@frozen(kw_only=True)
class Excuses:
    """The reasons, by live name (that of the base model, for tensors of one that is adapted) and by stored key."""

    live: Mapping[str, str] = field(factory=dict)
    stored: Mapping[str, str] = field(factory=dict)


def excuses_of(
    model: ModelFacts, checkpoint: CheckpointFacts, plan: PlanFacts, contract: ContractFacts | None
) -> Excuses:
    """What the coverage of the plan excuses. Nothing where files that count could not be read."""
    try:
        coverage = planned_coverage(Facts(model=model, checkpoint=checkpoint, plan=plan, contract=contract))
    except NotEvaluated:
        return Excuses()
    return Excuses(
        live={base_name(name) or name: _TARGETS[kind] for name, kind in coverage.targets.items() if kind in _TARGETS},
        stored={key: _SOURCES[kind] for key, kind in coverage.sources.items() if kind in _SOURCES},
    )
