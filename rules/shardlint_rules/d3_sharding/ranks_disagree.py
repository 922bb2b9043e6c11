"""D313 ranks-disagree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import RankDifference

from ._layouts import ranks_text

_GROUP = tuple[int, ...]


@frozen
class _Kind:
    """How differences of one kind are told: what the thing is called, what the finding is about, how bad it is."""

    noun: str
    subject: SubjectKind
    severity: Severity = Severity.ERROR


_KINDS: Mapping[str, _Kind] = {
    "parameter": _Kind("", SubjectKind.TENSOR),
    "buffer": _Kind("", SubjectKind.TENSOR),
    "cache": _Kind("", SubjectKind.TENSOR, Severity.WARNING),
    "module": _Kind("", SubjectKind.MODULE),
    "unit": _Kind("", SubjectKind.UNIT),
    "model": _Kind("", SubjectKind.MODEL),
    "config": _Kind("config ", SubjectKind.CONFIG),
    "optimizer": _Kind("optimizer ", SubjectKind.FIELD),
    "group": _Kind("parameter group ", SubjectKind.FIELD),
    "held": _Kind("the optimizer's place of ", SubjectKind.TENSOR),
    "environment": _Kind("environment ", SubjectKind.CONFIG, Severity.WARNING),
    "contract": _Kind("contract ", SubjectKind.CONFIG, Severity.WARNING),
    "data": _Kind("data ", SubjectKind.CONFIG, Severity.WARNING),
    "checkpoint": _Kind("checkpoint ", SubjectKind.FILE, Severity.WARNING),
}


class RanksDisagree(Rule):
    """
    Ranks that work together differ in what they must share.

    ## What it does
    Compares everything that is known of the model, its sharding and its optimizer between ranks that share a mesh or
    a reduction, and names the ranks that differ from most others: names, global shapes, dtypes, owners, gradient
    domains, meshes, placements, `requires_grad` and order of parameters; buffers, and the values of non-persistent
    ones; precision, resharding, prefetching, flags and divisors of units; classes, modes and settings (a dropout rate,
    an epsilon, an activation) of modules; the configuration; optimizers and the hyperparameters of their groups;
    contract, data pipeline and stored tensors; and switches and variables that change results. What belongs to one
    rank is left out (what it holds of a parameter, its place in a mesh), and ranks of different pipeline stages share
    no mesh and are not compared.

    Settings of modules that are not torch's own, values and shapes of non-persistent buffers, and what surrounds the
    model are warnings: they may differ on purpose.

    ## Why it is unsafe
    Collectives pair by order, not by name. A parameter too many, another dtype, another frozen layer, another
    resharding or reduction dtype on one rank makes the job hang, fail in a collective with sizes that do not fit, or
    add one parameter's gradient to another's; parameters of one size in another order do the last. Another learning
    rate, dropout rate, epsilon or divisor on one rank trains another model there, silently.

    ## What to do
    Build every rank from the same config and seed; look for branches on the rank, on the local files, or on the
    environment, in the code that builds the model.
    """

    code = "D313"
    name = "ranks-disagree"
    phase = Phase.D3
    severity = Severity.ERROR
    needs = (Section.RANKS,)
    noun = "set of ranks"

    def subjects(self, facts: Facts) -> Iterator[_GROUP]:
        groups = [group for group in facts.require(Section.RANKS).compared if len(group) > 1]
        if not groups:
            raise NotEvaluated("no two ranks share a mesh or a reduction, so no ranks were compared")
        yield from groups

    def judge(self, group: _GROUP, facts: Facts) -> Iterator[Finding]:
        ranks = facts.require(Section.RANKS)
        more = f"; {ranks.left_out} further differences are not listed" if ranks.left_out else ""
        for difference in ranks.differences:
            if difference.reference_rank in group:
                yield self.difference(difference, more)

    def difference(self, difference: RankDifference, more: str) -> Finding:
        kind = _KINDS[difference.kind]
        return self.finding(
            subject=difference.fqn,
            kind=kind.subject,
            severity=Severity.WARNING if difference.field.startswith("setting ") else kind.severity,
            ranks=difference.ranks,
            message=(
                f"{kind.noun}{difference.field.replace('_', ' ')}: rank {difference.reference_rank} has "
                f"{difference.reference}, {ranks_text(difference.ranks)} "
                f"{'has' if len(difference.ranks) == 1 else 'have'} {difference.value}{more}"
            ),
            evidence={
                "field": difference.field,
                "value": difference.value,
                "reference": difference.reference,
                "reference_rank": difference.reference_rank,
            },
            key=difference.field if difference.kind == "parameter" else f"{difference.kind} {difference.field}",
        )
