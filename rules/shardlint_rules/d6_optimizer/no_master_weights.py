"""D608 no-master-weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.facts import HeldTensor, LiveParameter, OptimizerFacts, TensorValues, known

_MANTISSA = {"bfloat16": 7, "float16": 10}
_SMALLEST = {"bfloat16": -133, "float16": -24}  # exponents of the spacing of subnormal numbers
_STEP_IS_RATE = ("adam", "lion", "adafactor", "adan", "came", "sophia", "rmsprop", "adagrad")
_MASTER = ("master", "main", "fp32", "kahan", "compensation", "shift")
_ROUNDING = ("stochastic_rounding", "bf16_stochastic_round", "kahan_sum", "use_kahan_summation")


class NoMasterWeights(Rule):
    """
    A parameter in 16 bits is updated in place by steps that are too small for it.

    ## What it does
    Takes trainable bfloat16 and float16 parameters that the optimizer holds themselves, without a main copy in float32
    (neither beside the parameter nor in the optimizer's state), with an optimizer whose step is about as large as its
    learning rate (Adam and its kin). Reports those whose learning rate, the initial one where a schedule keeps it, is
    below half the distance between neighbouring numbers at the tensor's typical magnitude. Optimizers that round
    stochastically or keep the rest of the sum say so in their options, and are left out.

    ## Why it is unsafe
    An update of less than half the distance rounds back to the old value: the weight never moves, however many steps
    are taken. The loss falls at first, by the few weights that are small enough, and then stays.

    ## What to do
    Keep the parameters in float32 and compute in bfloat16 (mixed precision of the units, autocast), or use an optimizer
    with main weights or stochastic rounding.
    """

    code = "D608"
    name = "no-master-weights"
    phase = Phase.D6
    severity = Severity.WARNING
    needs = (Section.OPTIMIZER, Section.VALUES)

    noun = "16-bit parameter"

    def subjects(self, facts: Facts) -> Iterator[tuple[LiveParameter, HeldTensor, TensorValues | None]]:
        """Parameters in 16 bits that are updated in place, with their statistics."""
        optimizer, values = facts.require(Section.OPTIMIZER), facts.require(Section.VALUES).by_name()
        for tensor in optimizer.held:
            parameter, dtype = optimizer.parameter_of(tensor), optimizer.specs[tensor.spec].dtype
            if parameter is not None and dtype in _MANTISSA and _updated_in_place(optimizer, tensor, parameter):
                yield parameter, tensor, values.get(parameter.fqn)

    def judge(self, subject: tuple[LiveParameter, HeldTensor, TensorValues | None], facts: Facts) -> Iterable[Finding]:
        parameter, tensor, seen = subject
        optimizer = facts.require(Section.OPTIMIZER)
        kind = optimizer.optimizer_of(tensor).qualified_type.rpartition(".")[2]
        if not any(name in kind.lower() for name in _STEP_IS_RATE):
            raise NotEvaluated(f"how large a step of {kind} is depends on the gradients")
        if seen is None or (seen.magnitude is None and not seen.zero and seen.elements):
            raise NotEvaluated("its values were not looked at")
        return self.small_steps(optimizer, tensor, parameter, seen.magnitude) if seen.magnitude else ()

    def small_steps(
        self, optimizer: OptimizerFacts, tensor: HeldTensor, parameter: LiveParameter, magnitude: float
    ) -> Iterator[Finding]:
        group, dtype = optimizer.group_of(tensor), optimizer.specs[tensor.spec].dtype
        rate = max(group.number("lr") or 0.0, group.number("initial_lr") or 0.0)
        distance = spacing(magnitude, dtype)
        if 0.0 < rate < distance / 2:
            yield self.finding(
                subject=parameter.fqn,
                message=f"{dtype} without a float32 main copy: numbers of its magnitude, {magnitude:.2g}, are "
                f"{distance:.2g} apart, and lr={rate:g} is less than half of that",
                evidence={"lr": rate, "spacing": distance, "magnitude": magnitude, "dtype": dtype},
                owner=parameter.owner or None,
            )


def spacing(magnitude: float, dtype: str) -> float:
    """The distance between neighbouring numbers of the dtype at that magnitude."""
    exponent = math.frexp(magnitude)[1] - 1 - _MANTISSA[dtype]
    return 2.0 ** max(exponent, _SMALLEST[dtype])


def _updated_in_place(optimizer: OptimizerFacts, tensor: HeldTensor, parameter: LiveParameter) -> bool:
    if tensor.main or known(parameter.main) is not None or not parameter.requires_grad:
        return False
    instance, options = optimizer.optimizer_of(tensor), optimizer.group_of(tensor).options
    if any(options.get(name) or instance.settings.get(name) for name in _ROUNDING) or instance.partitioned:
        return False
    return not any(part in name.lower() for name in tensor.state for part in _MASTER)
