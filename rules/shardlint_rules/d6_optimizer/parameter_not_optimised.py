"""D604 parameter-not-optimised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, Unknown
from shardlint.facts import LiveParameter, known
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

    noun = "trainable parameter"

    def subjects(self, facts: Facts) -> Iterator[tuple[LiveParameter, bool] | Unknown]:
        """Every parameter that needs a gradient, and whether it is held, or once was and is D603's."""
        optimizer = facts.require(Section.OPTIMIZER)
        if reasons := partitioned(optimizer):
            yield Unknown("; ".join(reasons))
            return
        replaced = {counterpart.parameter.identity for counterpart in counterparts(optimizer).values()}
        held = {tensor.parameter for tensor in optimizer.held}
        nobody = facts.ranks.unheld_on(facts.environment.rank) if facts.ranks is not None else None
        for index, parameter in enumerate(optimizer.parameters):
            if parameter.requires_grad:
                elsewhere = nobody is not None and parameter.fqn not in nobody
                yield parameter, index in held or elsewhere or parameter.identity in replaced

    def judge(self, subject: tuple[LiveParameter, bool] | Unknown, facts: Facts) -> Iterable[Finding]:
        parameter, held = known(subject)
        if held or self.declared(parameter.aliases):
            return ()
        groups = len(facts.require(Section.OPTIMIZER).groups)
        finding = self.finding(
            subject=parameter.fqn,
            message=f"trainable, but in no parameter group (of {groups})",
            evidence={"aliases": parameter.aliases, "shape": parameter.global_shape},
            owner=parameter.owner or None,
        )
        return (finding,)

    def declared(self, names: tuple[str, ...]) -> bool:
        return any(glob_matches(glob, name) for glob in self.options.declared for name in names)
