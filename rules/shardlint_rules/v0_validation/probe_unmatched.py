"""V001 probe-unmatched."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.contract_globs import matches_any, meant_across_dots
from shardlint.analysis.keys import Candidates
from shardlint.names import counted


class ProbeUnmatched(Rule):
    """
    A required parameter probe of the contract matches no parameter.

    ## What it does
    Matches the glob of every required probe, case-sensitively, against every name of every parameter of the final
    model.

    ## Why it is unsafe
    A probe names the parameters whose values the owner wants verified. A probe that matches nothing verifies nothing.

    ## What to do
    Correct the glob, find out why the parameters are not there, or declare the probe as not required.
    """

    code = "V001"
    name = "probe-unmatched"
    phase = Phase.V0
    severity = Severity.ERROR
    needs = (Section.CONTRACT, Section.MODEL)
    related_config = ("contract.probes",)

    def check(self, facts: Facts) -> Iterator[Finding]:
        contract = facts.require(Section.CONTRACT)
        model = facts.require(Section.MODEL)
        names = tuple(alias for tensor in model.parameters for alias in tensor.aliases)
        lost = [probe.glob for probe in contract.probes if probe.required and not matches_any(probe.glob, names)]
        candidates = Candidates(names) if lost else None
        for glob in dict.fromkeys(lost):
            near = candidates.near(glob) if candidates else ()
            hint = f"; the nearest names are {', '.join(near)}" if near else ""
            if wider := meant_across_dots(glob, names):
                hint = f"; `*` is one segment of a name: {wider!r} would match"
            yield self.finding(
                subject=glob,
                kind=SubjectKind.PATTERN,
                message=f"the required probe {glob!r} matches none of {counted(len(names), 'parameter name')}{hint}",
                evidence={"nearest": near, "parameters": len(names)},
            )
