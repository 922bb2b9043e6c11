"""D512 tie-stored-twice."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.facts import TensorPlan, TiePlan
from shardlint_rules._files import READ_FILES


class TieStoredTwice(Rule):
    """
    Two names of one tensor are stored both, with different values.

    ## What it does
    For every tie that the class and its configuration declare, and for all names under which the live model shares one
    tensor, looks whether the checkpoint has a source for either end, and compares the stored bytes. Equal bytes are no
    finding: many formats store both ends.

    ## Why it is unsafe
    One of the two is overwritten by the other, or the tie is given up without an error: loaders differ. Whichever the
    training used, the other is what somebody will evaluate.

    ## What to do
    Set `tie_word_embeddings` to false (or share no module) when both were trained; otherwise remove the copy that is
    not used.
    """

    code = "D512"
    name = "tie-stored-twice"
    phase = Phase.D5
    severity = Severity.WARNING
    needs = (Section.PLAN,)
    tags = (READ_FILES,)
    related_config = ("tie_word_embeddings",)

    noun = "tie"

    def subjects(self, facts: Facts) -> Iterator[tuple[TiePlan, dict[str, TensorPlan]]]:
        plan = facts.require(Section.PLAN)
        tensors = plan.tensor_by_name() if any(tie.both_stored for tie in plan.ties) else {}
        return ((tie, tensors) for tie in plan.ties)

    def judge(self, subject: tuple[TiePlan, dict[str, TensorPlan]], facts: Facts) -> Iterator[Finding]:
        tie, tensors = subject
        if not tie.both_stored:
            return
        if tie.equal is None:
            raise NotEvaluated(f"the bytes of {tie.name} and what it is tied to were not compared")
        if not tie.equal:
            keys = [*tensors[tie.name].sources, *tensors[tie.source].sources]
            yield self.finding(
                subject=tie.name,
                message=f"{tie.name} is tied to {tie.source}, but the checkpoint stores both with different bytes",
                evidence={"tied_to": tie.source, "keys": keys},
            )
