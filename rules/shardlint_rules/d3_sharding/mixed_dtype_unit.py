"""D305 mixed-dtype-unit."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import OwnershipFacts, UnitFacts, known
from shardlint.names import ordered

from ._layouts import live


class MixedDtypeUnit(Rule):
    """
    A unit holds trainable parameters of more than one dtype, which the installed torch refuses.

    ## What it does
    Compares the dtypes of the trainable parameters of each unit, for units whose implementation gathers and reduces
    one dtype only (the collector asks the installed version). Frozen parameters may have another dtype.

    ## Why it is unsafe
    The first forward raises, after the model was built, loaded and sharded: on a large job that is an hour lost.
    A norm kept in float32 by a loader inside a layer in bfloat16 is the usual cause.

    ## What to do
    Bring the unit to one dtype and leave lower precision to the mixed-precision policy, or wrap the module of the
    other dtype as a unit of its own.
    """

    code = "D305"
    name = "mixed-dtype-unit"
    phase = Phase.D3
    severity = Severity.ERROR
    needs = (Section.SHARDING,)
    related_config = ("torch_dtype", "mp_policy")

    noun = "unit"

    def subjects(self, facts: Facts) -> Iterator[tuple[UnitFacts, list[OwnershipFacts]]]:
        sharding = facts.require(Section.SHARDING)
        for index, records in sharding.by_unit().items():
            trainable = [record for record in live(records) if record.requires_grad]
            if trainable:
                yield sharding.units[index], trainable

    def judge(self, subject: tuple[UnitFacts, list[OwnershipFacts]], facts: Facts) -> Iterator[Finding]:
        unit, trainable = subject
        dtypes = dict[str, list[str]]()
        for record in trainable:
            if not record.dtype:
                raise NotEvaluated(f"the dtype of {record.fqn} is not known")
            dtypes.setdefault(known(record.dtype), []).append(known(record.fqn))
        if len(dtypes) < 2 or unit.one_dtype_only is False:
            return
        if unit.one_dtype_only is None:
            raise NotEvaluated("unknown whether units take several dtypes")
        rare = min(sorted(dtypes), key=lambda dtype: len(dtypes[dtype]))
        yield self.finding(
            subject=unit.name,
            kind=SubjectKind.UNIT,
            owner=unit.owner,
            message=(
                f"expected one dtype among the trainable parameters, found {', '.join(sorted(dtypes))}; "
                f"{rare}: {', '.join(ordered(dtypes[rare])[:4])}"
            ),
            evidence={"dtypes": {dtype: ordered(dtypes[dtype]) for dtype in sorted(dtypes)}},
        )
