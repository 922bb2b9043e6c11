"""D203 placeholder-left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import ModuleFacts
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

    noun = "module"

    def subjects(self, facts: Facts) -> Iterable[ModuleFacts]:
        return facts.require(Section.MODEL).modules

    def judge(self, subject: ModuleFacts, facts: Facts) -> Iterable[Finding]:
        return self.left(subject) if subject.placeholder else ()

    def left(self, module: ModuleFacts) -> Iterator[Finding]:
        yield self.finding(
            subject=module.fqn or ROOT,
            kind=SubjectKind.MODULE,
            message=f"{module.qualified_type} is a placeholder: {module.placeholder}",
            evidence={"type": module.qualified_type, "aliases": module.aliases},
        )
