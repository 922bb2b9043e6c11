"""D609 state-keyed-by-position."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import HeldTensor, OptimizerFacts, StoredOptimizerFacts, StoredParameterState
from shardlint.names import counted

_LISTED = 50


class StateKeyedByPosition(Rule):
    """
    A stored optimizer state does not fit the live optimizer, parameter by parameter.

    ## What it does
    Reads the keys, groups and shapes of optimizer states in the checkpoint's folder, without executing anything. A
    state that is keyed by position is compared with what the live groups hold, in order: sizes of groups, shapes, and
    names where the file keeps some. Of a state that is keyed by name it reports live parameters without an entry,
    and entries without a live parameter.

    ## Why it is unsafe
    `Optimizer.load_state_dict` matches by position and compares nothing but the sizes of groups: moments of one
    parameter go to another of the same shape silently, or fail in the first step. Entries that resuming misses
    start from zero.

    ## What to do
    Build groups in the same order as the run that saved, or save with
    `torch.distributed.checkpoint.state_dict.get_optimizer_state_dict`, which keys by name.
    """

    code = "D609"
    name = "state-keyed-by-position"
    phase = Phase.D6
    severity = Severity.WARNING
    needs = (Section.OPTIMIZER,)

    noun = "stored state"

    def subjects(self, facts: Facts) -> tuple[StoredOptimizerFacts, ...]:
        return facts.require(Section.OPTIMIZER).stored

    def judge(self, stored: StoredOptimizerFacts, facts: Facts) -> Iterator[Finding]:
        optimizer = facts.require(Section.OPTIMIZER)
        if stored.problem:
            raise NotEvaluated(stored.problem)
        if any(instance.partitioned for instance in optimizer.optimizers):
            raise NotEvaluated("the optimizer holds flat parts of many parameters")
        if stored.named and stored.format == "dcp":
            yield from self.by_name(optimizer, stored)
        else:
            yield from self.by_position(optimizer, stored)

    def by_name(self, optimizer: OptimizerFacts, stored: StoredOptimizerFacts) -> Iterator[Finding]:
        names = {parameter.key for parameter in stored.parameters}
        live = [
            live_parameter
            for live_parameter in map(optimizer.parameter_of, optimizer.held)
            if live_parameter is not None and live_parameter.requires_grad
        ]
        missed = [live_parameter.fqn for live_parameter in live if names.isdisjoint(live_parameter.aliases)]
        known = {alias for parameter in optimizer.parameters for alias in parameter.aliases}
        left = sorted(names - known)
        for one, many, names_of_one in (
            ("live parameter without stored state", "live parameters without stored state", missed),
            ("stored entry without a live parameter", "stored entries without a live parameter", left),
        ):
            if names_of_one:
                yield self.differs(stored, counted(len(names_of_one), one, many), many, names_of_one)

    def by_position(self, optimizer: OptimizerFacts, stored: StoredOptimizerFacts) -> Iterator[Finding]:
        sizes = tuple(group.size for group in optimizer.groups)
        if stored.group_sizes and stored.group_sizes != sizes:
            text = f"groups of {_sizes(stored.group_sizes)} where the live ones have {_sizes(sizes)}"
            yield self.differs(stored, text, text, [])
            return
        pairs = list(zip(stored.parameters, _places(optimizer, stored), strict=False))
        wrong = [
            _described(optimizer, entry, tensor)
            for entry, tensor in pairs
            if tensor and _differ(optimizer, entry, tensor)
        ]
        if wrong:
            many = "positions that hold the state of another parameter"
            text = counted(len(wrong), "position that holds the state of another parameter", many)
            yield self.differs(stored, text, many, wrong)

    def differs(self, stored: StoredOptimizerFacts, what: str, key: str, items: list[str]) -> Finding:
        shown = f": {', '.join(items[:3])}" if items else ""
        more = f" and {len(items) - 3} more" if len(items) > 3 else ""
        return self.finding(
            subject=stored.path,
            kind=SubjectKind.FILE,
            message=f"expected the stored state to fit the live optimizer, found {what}{shown}{more}",
            evidence={"items": items[:_LISTED], "count": len(items), "named": stored.named},
            key=key,
        )


def _sizes(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes)) + (" tensors" if len(sizes) != 1 or sizes[0] != 1 else " tensor")


def _places(optimizer: OptimizerFacts, stored: StoredOptimizerFacts) -> list[HeldTensor | None]:
    """For each stored entry the tensor at its place: group and position, else the position over all groups."""
    by_group = {(tensor.group, tensor.position): tensor for tensor in optimizer.held}
    by_number = dict(enumerate(optimizer.held))
    return [
        by_number.get(entry.position or 0) if entry.group is None else by_group.get((entry.group, entry.position or 0))
        for entry in stored.parameters
    ]


def _differ(optimizer: OptimizerFacts, entry: StoredParameterState, tensor: HeldTensor) -> bool:
    parameter = optimizer.parameter_of(tensor)
    if not entry.key.isdecimal() and parameter is not None:
        return entry.key not in parameter.aliases
    wanted = {optimizer.specs[number].shape for number in (tensor.spec, *tensor.state.values())}
    return bool(entry.shapes) and not any(tuple(shape) in wanted for shape in entry.shapes.values())


def _described(optimizer: OptimizerFacts, entry: StoredParameterState, tensor: HeldTensor) -> str:
    parameter = optimizer.parameter_of(tensor)
    live = "no live parameter" if parameter is None else parameter.fqn
    shapes = " ".join(f"{list(shape)}" for shape in dict.fromkeys(map(tuple, entry.shapes.values())))
    return f"{entry.key} {shapes} at {live} {list(optimizer.specs[tensor.spec].shape)}".replace("  ", " ")
