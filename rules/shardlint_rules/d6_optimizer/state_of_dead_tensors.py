"""D611 state-of-dead-tensors."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import OptimizerInstance, OrphanState, known
from shardlint.names import counted


class StateOfDeadTensors(Rule):
    """
    An optimizer keeps state for tensors that none of its groups holds.

    ## What it does
    Goes through the state of every optimizer, and reports those with entries that are keyed by a tensor that is in no
    group and is no parameter of the model.

    ## Why it is unsafe
    Groups were given new parameters and the state was not: moments of all these parameters begin at zero again, the old
    ones stay in memory as long as the optimizer, and a saved optimizer holds entries that no parameter answers to, so
    that loading it fails or mixes them up.

    ## What to do
    Build a new optimizer for new parameters, and carry the state over by name
    (`torch.distributed.checkpoint.state_dict`); or move each entry of `state` along with its parameter.
    """

    code = "D611"
    name = "state-of-dead-tensors"
    phase = Phase.D6
    severity = Severity.ERROR
    needs = (Section.OPTIMIZER,)
    noun = "optimizer"

    def subjects(self, facts: Facts) -> Iterator[tuple[OptimizerInstance, list[OrphanState], int]]:
        """The optimizers that keep state at all, with the entries of dead tensors and the number of the others."""
        optimizer = facts.require(Section.OPTIMIZER)
        for number, instance in enumerate(optimizer.optimizers):
            dead = [
                state for state in optimizer.orphans if state.optimizer == number and known(state.parameter) is None
            ]
            held = [tensor for tensor in optimizer.held if optimizer.group_of(tensor).optimizer == number]
            alive = len({tensor.identity for tensor in held if tensor.has_state})
            if dead or alive:
                yield instance, dead, alive

    def judge(self, subject: tuple[OptimizerInstance, list[OrphanState], int], facts: Facts) -> Iterator[Finding]:
        instance, dead, alive = subject
        if dead:
            specs = facts.require(Section.OPTIMIZER).specs
            text = counted(len(dead), "state is keyed by a tensor", "states are keyed by tensors")
            yield self.finding(
                subject=instance.name,
                kind=SubjectKind.MODEL,
                message=f"{text} that no group holds, such as {specs[dead[0].spec].text()}; "
                f"{counted(alive, 'state')} by tensors of the groups",
                evidence={"dead": len(dead), "alive": alive},
            )
