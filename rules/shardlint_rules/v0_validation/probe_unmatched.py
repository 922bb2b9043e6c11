"""V001 probe-unmatched."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.contract_globs import matches_any, meant_across_dots
from shardlint.analysis.keys import Candidates
from shardlint.names import counted


@frozen(slots=False)
class _Names:
    """The names of all parameters, and what finds near ones among them."""

    all: tuple[str, ...]

    @cached_property
    def candidates(self) -> Candidates:
        return Candidates(self.all)


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

    noun = "required probe"

    def subjects(self, facts: Facts) -> Iterator[tuple[str, _Names]]:
        model = facts.require(Section.MODEL)
        names = _Names(tuple(alias for tensor in model.parameters for alias in tensor.aliases))
        probes = facts.require(Section.CONTRACT).probes
        return ((glob, names) for glob in dict.fromkeys(probe.glob for probe in probes if probe.required))

    def judge(self, subject: tuple[str, _Names], facts: Facts) -> Iterator[Finding]:
        glob, names = subject
        if matches_any(glob, names.all):
            return
        near = names.candidates.near(glob)
        hint = f"; the nearest names are {', '.join(near)}" if near else ""
        if wider := meant_across_dots(glob, names.all):
            hint = f"; `*` is one segment of a name: {wider!r} would match"
        yield self.finding(
            subject=glob,
            kind=SubjectKind.PATTERN,
            message=f"the required probe {glob!r} matches none of {counted(len(names.all), 'parameter name')}{hint}",
            evidence={"nearest": near, "parameters": len(names.all)},
        )
