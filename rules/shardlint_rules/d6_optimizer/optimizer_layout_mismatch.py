"""D601 optimizer-layout-mismatch."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, Unknown
from shardlint.facts import HeldTensor, LiveParameter, OptimizerFacts, known
from shardlint.names import glob_matches

from ._held import partitioned, where

_FACTORED = ("*_row", "*_col", "row_*", "col_*", "absmax*", "qmap*")


@frozen(kw_only=True)
class LayoutOptions:
    """`other_shapes`: globs of state names that have a shape of their own by design, such as factored moments."""

    other_shapes: tuple[str, ...] = _FACTORED


class OptimizerLayoutMismatch(Rule):
    """
    A main parameter, a main gradient or an optimizer state has another layout than its parameter.

    ## What it does
    Compares global shape, mesh axis names, mesh shape and placements of every main parameter, main gradient and
    state tensor with those of the parameter that it belongs to. State without dimensions (a step count) is left
    out, and so is state that is factored by design (the option `other-shapes`), and state in one dim with as many
    elements as all tensors of the group together, as LBFGS keeps it.

    ## Why it is unsafe
    Update rules combine these tensors element by element. With another layout, either the step raises, or broadcasting
    and redistribution make it compute with elements that belong to other positions; resuming from such a state
    continues a different run.

    ## What to do
    Build the optimizer after the model has its final layout, and load optimizer state with the functions that know the
    layout (`torch.distributed.checkpoint.state_dict`). State that was made for another layout has to be redistributed
    or thrown away.
    """

    code = "D601"
    name = "optimizer-layout-mismatch"
    phase = Phase.D6
    severity = Severity.ERROR
    needs = (Section.OPTIMIZER,)
    options_type = LayoutOptions

    noun = "tensor"

    def subjects(self, facts: Facts) -> Iterator[LiveParameter | tuple[HeldTensor, int] | Unknown]:
        """Parameters with a main copy or gradient, held tensors with state and the elements of their group."""
        optimizer = facts.require(Section.OPTIMIZER)
        reasons = partitioned(optimizer)
        yield from (Unknown(reason) for reason in reasons)
        for parameter in optimizer.parameters if not reasons else ():
            if not parameter.flat and (known(parameter.main) is not None or known(parameter.main_gradient) is not None):
                yield parameter
        elements: dict[int, int] = {}
        for tensor in optimizer.held:
            elements[tensor.group] = elements.get(tensor.group, 0) + prod(optimizer.specs[tensor.spec].shape)
        yield from ((tensor, elements[tensor.group]) for tensor in optimizer.held if tensor.state)

    def judge(self, subject: LiveParameter | tuple[HeldTensor, int] | Unknown, facts: Facts) -> Iterator[Finding]:
        optimizer = facts.require(Section.OPTIMIZER)
        if isinstance(subject, LiveParameter):
            roles = (("main parameter", subject.main), ("main gradient", subject.main_gradient))
            for role, spec in roles:
                if spec is not None:
                    yield from self.compare(optimizer, subject.fqn, role, subject.spec, spec)
            return
        tensor, elements = known(subject)
        yield from self.state_of(optimizer, tensor, elements)

    def subject_name(self, subject: object) -> str:
        if isinstance(subject, tuple):
            return f"the tensor at position {subject[0].position} of group {subject[0].group}"
        return super().subject_name(subject)

    def state_of(self, optimizer: OptimizerFacts, tensor: HeldTensor, elements: int) -> Iterator[Finding]:
        parameter = optimizer.parameter_of(tensor)
        subject = parameter.fqn if parameter is not None else where(optimizer, tensor)
        for name, spec in tensor.state.items():
            flat = optimizer.specs[spec].shape == (elements,)  # one state for all tensors of the group, end to end
            if not flat and not any(glob_matches(glob, name) for glob in self.options.other_shapes):
                yield from self.compare(optimizer, subject, f"state {name}", tensor.spec, spec)

    def compare(
        self, optimizer: OptimizerFacts, subject: str, role: str, wanted: int, actual: int
    ) -> Iterator[Finding]:
        left, right = optimizer.specs[wanted], optimizer.specs[actual]
        if left.same_layout(right):
            return
        differs = [
            name
            for name, same in (
                ("shape", left.shape == right.shape),
                ("layout", left.layout == right.layout),
            )
            if not same
        ]
        yield self.finding(
            subject=subject,
            message=f"expected its {role} to be laid out as the parameter is, {left.text()}, found {right.text()}",
            evidence={"role": role, "parameter": left.text(), "found": right.text(), "differs": differs},
            key=role,
        )
