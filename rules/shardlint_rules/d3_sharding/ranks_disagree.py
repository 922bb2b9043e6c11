"""D313 ranks-disagree."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity

from ._layouts import ranks_text


class RanksDisagree(Rule):
    """
    Ranks that work together built different models.

    ## What it does
    Compares names, global shapes, dtypes, owners, gradient domains, meshes, placements and `requires_grad` of all
    parameters, and their order within their unit, between ranks that share a mesh or a reduction, and names the first
    rank that differs. What a rank holds of a parameter may differ, and ranks of different pipeline stages share no
    mesh and are not compared.

    ## Why it is unsafe
    Collectives pair by order, not by name. A parameter too many, another dtype or another frozen layer on one rank
    makes the job hang, fail in a collective with sizes that do not fit, or add one parameter's gradient to another's;
    parameters of one size in another order do the last.

    ## What to do
    Build every rank from the same config and seed; look for branches on the rank, on the local files, or on the
    environment, in the code that builds the model.
    """

    code = "D313"
    name = "ranks-disagree"
    phase = Phase.D3
    severity = Severity.ERROR
    needs = (Section.RANKS,)

    def check(self, facts: Facts) -> Iterator[Finding]:
        ranks = facts.require(Section.RANKS)
        if not any(len(group) > 1 for group in ranks.compared):
            raise NotEvaluated("no two ranks share a mesh or a reduction, so no ranks were compared")
        more = f"; {ranks.left_out} further differences are not listed" if ranks.left_out else ""
        for difference in ranks.differences:
            yield self.finding(
                subject=difference.fqn,
                ranks=difference.ranks,
                message=(
                    f"{difference.field.replace('_', ' ')}: rank {difference.reference_rank} has "
                    f"{difference.reference}, {ranks_text(difference.ranks)} "
                    f"{'has' if len(difference.ranks) == 1 else 'have'} {difference.value}{more}"
                ),
                evidence={
                    "field": difference.field,
                    "value": difference.value,
                    "reference": difference.reference,
                    "reference_rank": difference.reference_rank,
                },
                key=difference.field,
            )
