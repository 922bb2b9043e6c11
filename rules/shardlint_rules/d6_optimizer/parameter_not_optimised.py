"""D604 parameter-not-optimised."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.names import glob_matches

from ._held import counterparts, partitioned


@frozen(kw_only=True)
class NotOptimisedOptions:
    """`declared`: globs of trainable parameters that no optimizer is meant to hold."""

    declared: tuple[str, ...] = ()


class ParameterNotOptimised(Rule):
    """
    A trainable parameter is in no group of any optimizer.

    ## What it does
    Reports live parameters that need a gradient and that no optimizer holds, neither themselves nor their main copies.
    Parameters that D603 names as the live end of a stale tensor are left to that rule. Names that match the option
    `declared` are not reported.

    ## Why it is unsafe
    The parameter costs a gradient in every step and keeps its first value. Adapters that were added after the
    optimizer was built, and groups that are chosen by name patterns, lose parameters like this silently.

    ## What to do
    Add the parameter to a group, freeze it, or declare it.
    """

    code = "D604"
    name = "parameter-not-optimised"
    phase = Phase.D6
    severity = Severity.ERROR
    needs = (Section.OPTIMIZER,)
    options_type = NotOptimisedOptions

    def check(self, facts: Facts) -> Iterator[Finding]:
        optimizer = facts.require(Section.OPTIMIZER)
        if reasons := partitioned(optimizer):
            raise NotEvaluated("; ".join(reasons))
        stale = {counterpart.parameter.identity for counterpart in counterparts(optimizer).values()}
        nobody = facts.ranks.unheld_on(facts.environment.rank) if facts.ranks is not None else None
        for parameter in optimizer.not_held():
            if nobody is not None and parameter.fqn not in nobody:
                continue
            if not parameter.requires_grad or parameter.identity in stale or self.declared(parameter.aliases):
                continue
            yield self.finding(
                subject=parameter.fqn,
                message=f"trainable, but in no parameter group (of {len(optimizer.groups)})",
                evidence={"aliases": parameter.aliases, "shape": parameter.global_shape},
                owner=parameter.owner or None,
            )

    def declared(self, names: tuple[str, ...]) -> bool:
        return any(glob_matches(glob, name) for glob in self.options.declared for name in names)
