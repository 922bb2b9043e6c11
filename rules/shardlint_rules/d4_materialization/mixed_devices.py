"""D407 mixed-devices."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind, Unknown
from shardlint.facts import TensorFacts, known
from shardlint.names import counted, natural_key


class MixedDevices(Rule):
    """
    Parameters and buffers lie on more than one type of device, and nothing offloads them.

    ## What it does
    Brings tensors together by the type of their device; meta tensors are D401's, and scalars may stay on the CPU. When
    there is more than one type, those outside the largest one are reported. A model with offloading (accelerate's hooks
    or device map, a unit's CPU offload policy) is left alone.

    ## Why it is unsafe
    A forward that meets both raises in the best case. Buffers are often used through indexing or host-side code that
    copies them silently, in each step; optimizers and gradient norms fail later.

    ## What to do
    Move the model as a whole after building it, and register tensors as buffers, so that they move along.
    """

    code = "D407"
    name = "mixed-devices"
    phase = Phase.D4
    severity = Severity.WARNING
    needs = (Section.MODEL,)
    noun = "type of device"

    def subjects(self, facts: Facts) -> Iterator[tuple[str, str, list[TensorFacts]] | Unknown]:
        """Every type of device with the one that most of the state is on, and its tensors."""
        model = facts.require(Section.MODEL)
        by_type: dict[str, list[TensorFacts]] = {}
        for tensor in model.tensors:
            if tensor.unreadable is not None:
                yield Unknown(f"{tensor.fqn}: {tensor.unreadable}")
            elif not tensor.is_meta and tensor.shape and tensor.device:
                by_type.setdefault(tensor.device.partition(":")[0], []).append(tensor)
        main = max(by_type, key=lambda kind: sum(tensor.numel for tensor in by_type[kind]), default="")
        for kind, tensors in sorted(by_type.items()):
            yield kind, main, tensors

    def judge(self, subject: tuple[str, str, list[TensorFacts]] | Unknown, facts: Facts) -> Iterator[Finding]:
        kind, main, tensors = known(subject)
        if kind == main or facts.require(Section.MODEL).offload:
            return
        names = sorted((tensor.fqn for tensor in tensors), key=natural_key)
        found = counted(len(names), "tensor")
        yield self.finding(
            subject=names[0],
            kind=SubjectKind.TENSOR,
            message=f"expected all state on {main}, found {found} on {kind}, such as {names[0]}",
            evidence={"device": kind, "expected": main, "tensors": names[:100], "count": len(names)},
            key=kind,
        )
