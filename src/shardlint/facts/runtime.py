"""The `runtime` section: what a traced step did. See `shardlint.trace`."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from ..names import ROOT
from .unknown import Unknown, known

SHARDING_KINDS = ("fsdp2", "hsdp", "replicate", "fsdp1", "hyperparallel")
"""Kinds of units whose parameters are gathered by hooks of the unit's forward: one that is bypassed is not gathered."""


@frozen(kw_only=True)
class StepFacts:
    """
    One micro-step: a forward of the root module, and what followed until the next one.

    `fields` are the forward arguments that were given and are not None. `with_gradients` says whether gradients were
    enabled when the forward began, `functional` whether other tensors stood in for parameters of the model then, as
    `torch.func.functional_call` puts them there.
    """

    index: int
    fields: tuple[str, ...] = ()
    with_gradients: bool = True
    functional: bool = False


@frozen(kw_only=True)
class UnitEvent:
    """
    Something that a unit did in micro-step `step`, in the order of the trace.

    `kind` is forward, recompute, backward (its backward began), unshard or prefetch (its parameters began to be
    gathered: on demand, or ahead of it while the unit `within` ran).
    """

    kind: str
    unit: str
    step: int
    within: str = ""


@frozen(kw_only=True)
class TracedUnit:
    """
    A unit as it was traced.

    `kind` is that of the sharding facts, or `module` where nothing shards: repeated blocks, and the modules that hold
    the other parameters. `parameters` are the FQNs that it holds, `modules` its modules. `observed` is false when its
    forward cannot be seen (`why_unobserved`). `inner_runs` names modules inside it that ran although its own forward
    was not running; `while_sharded` those that ran although its parameters were not gathered. `checkpointed` is
    reentrant, non-reentrant, unknown (recomputation was seen) or empty. `cut_off` says that a reentrant checkpoint
    region ran it on inputs of which none needs a gradient. `discarded` counts all-gathers that nobody had waited for
    when the framework finished a backward and threw them away, without those that it had chosen by itself.
    """

    name: str
    kind: str
    modules: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    forward_prefetch: tuple[str, ...] = ()
    backward_prefetch: tuple[str, ...] = ()
    observed: bool = True
    why_unobserved: str = ""
    inner_runs: tuple[str, ...] = ()
    while_sharded: tuple[str, ...] = ()
    checkpointed: str = ""
    cut_off: bool = False
    discarded: int = 0

    @property
    def sharded(self) -> bool:
        """Whether hooks of the unit's forward gather its parameters."""
        return self.kind in SHARDING_KINDS

    @property
    def at_root(self) -> bool:
        """Whether the root module is one of the unit's modules."""
        return ROOT in self.modules


@frozen(kw_only=True)
class GradientFacts:
    """
    The gradient of one trainable parameter, by identity, at each look: at optimizer steps, else at the end.

    `accumulated` counts the backwards in which the parameter got a gradient, whoever used it then. `present` counts the
    looks at which it was there, `not_finite` are the numbers of those at which it held NaN or Inf, `zero` counts
    those at which it was zero everywhere. `module_ran` says whether a module that holds the parameter was called (None:
    not observed); `units` are the units that hold it. Of one
    that cannot be looked into `not_finite` and `zero` are not known.
    """

    fqn: str
    aliases: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    present: int = 0
    not_finite: tuple[int, ...] | Unknown = ()
    zero: int | Unknown = 0
    module_ran: bool | None = None
    accumulated: int = 0

    @property
    def finite(self) -> bool:
        """Whether some look found a finite gradient."""
        return self.present > len(known(self.not_finite))


@frozen(kw_only=True)
class DirectUse:
    """A torch function that was given a parameter while it was sharded: its name, and where it was called."""

    unit: str
    parameter: str
    function: str
    where: str = ""


@frozen(kw_only=True)
class PendingGather:
    """A unit with an all-gather that nobody waited for, at a look (its number)."""

    unit: str
    look: int


@frozen(kw_only=True)
class StateEvent:
    """
    A shared state was produced or consumed (`kind`) in micro-step `step` by the module `by`.

    `recompute` says that it happened while an activation checkpoint was recomputed.
    """

    kind: str
    state: str
    by: str
    step: int
    recompute: bool = False


@frozen(kw_only=True)
class RuntimeFacts:
    """
    What happened between entering and leaving the trace, on this rank.

    `hidden_gradients` are the parameters outside the module tree that got a gradient, by the names of
    `ModelFacts.hidden`; `outside` are the classes of modules with trainable parameters outside the tree that the
    forward of the model called.

    `looks` says at which moments gradients and pending all-gathers were read: `optimizer-step` (before it, or after it
    when the step runs a closure), `backward` (after it, while no optimizer is known) or `end`. `backwards`
    says whether any backward was seen. `raised` is the error that ended the trace, `raised_in` the unit that was
    running then. `dropped` counts events beyond the limit of the trace, `state_dropped` those of shared state.
    """

    steps: tuple[StepFacts, ...] = ()
    units: tuple[TracedUnit, ...] = ()
    events: tuple[UnitEvent, ...] = ()
    gradients: tuple[GradientFacts, ...] = ()
    looks: tuple[str, ...] = ()
    pending: tuple[PendingGather, ...] = ()
    direct_uses: tuple[DirectUse, ...] = ()
    state_events: tuple[StateEvent, ...] = ()
    backwards: bool = False
    raised: str = ""
    raised_in: str = ""
    dropped: int = 0
    state_dropped: int = 0
    hidden_gradients: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()

    @property
    def optimizer_stepped(self) -> bool:
        """Whether an optimizer of the model stepped within the trace."""
        return "optimizer-step" in self.looks

    def reached(self, gradient: GradientFacts) -> bool:
        """Whether the parameter got a gradient that something could use: at a look, or while no optimizer stepped."""
        return bool(gradient.present or (gradient.accumulated and not self.optimizer_stepped))

    def order(self, kind: str, step: int | None = None) -> tuple[str, ...]:
        """The units of the events of one kind, in their order; of one micro-step, or of all."""
        return tuple(event.unit for event in self.events if event.kind == kind and (step is None or event.step == step))

    def forwarded(self) -> frozenset[str]:
        """The units of which a forward was seen."""
        return frozenset(event.unit for event in self.events if event.kind == "forward")

    def unit_by_name(self) -> dict[str, TracedUnit]:
        """The units by name."""
        return {unit.name: unit for unit in self.units}

    def gradients_by_unit(self) -> dict[str, list[GradientFacts]]:
        """The gradients of the trainable parameters of each unit."""
        found: dict[str, list[GradientFacts]] = {unit.name: [] for unit in self.units}
        for gradient in self.gradients:
            for unit in gradient.units:
                found.setdefault(unit, []).append(gradient)
        return found

    def training_steps(self) -> Iterator[StepFacts]:
        """The micro-steps with gradients."""
        return (step for step in self.steps if step.with_gradients)
