"""D203 placeholder-left."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.names import ROOT


class PlaceholderLeft(Rule):
    """
    A placeholder that cannot be executed is left in the final module tree.

    ## What it does
    Looks for modules that say of themselves that they cannot be executed, and for modules whose class the contract
    declares to be a placeholder.

    ## Why it is unsafe
    The step that reaches the placeholder fails, or (where its forward returns its input) goes on without the layer that
    should stand there.

    ## What to do
    Find out why the real module was not put in its place: a replacement that matched nothing, a build that stopped half
    way, an optional dependency that is missing.
    """

    code = "D203"
    name = "placeholder-left"
    phase = Phase.D2
    severity = Severity.ERROR
    needs = (Section.MODEL,)
    related_config = ("contract.placeholders",)

    def check(self, facts: Facts) -> Iterator[Finding]:
        model = facts.require(Section.MODEL)
        for module in model.modules:
            if module.placeholder:
                yield self.finding(
                    subject=module.fqn or ROOT,
                    kind=SubjectKind.MODULE,
                    message=f"{module.qualified_type} is a placeholder: {module.placeholder}",
                    evidence={"type": module.qualified_type, "aliases": module.aliases},
                )
