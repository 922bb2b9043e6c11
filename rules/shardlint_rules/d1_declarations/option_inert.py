"""D109 option-inert."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import ContractFacts
from shardlint.names import counted


@frozen(kw_only=True)
class RunOptions:
    """
    What the run is meant to do: `prefetch` (units prefetch one another), `rank0_loading` (rank 0 alone reads the
    weights, the others begin on meta), `loads_checkpoint` (the checkpoint that is named is loaded into the model).
    """

    prefetch: bool = False
    rank0_loading: bool = False
    loads_checkpoint: bool = False


class OptionInert(Rule):
    """
    A run option or a part of the contract that was declared has no effect.

    ## What it does
    Names the parts of the contract that no rule looks at: parity cases, the stages, comparison and replica check of
    probes, fields replicated along context parallelism, and deterministic replay. For each run option that the rule's
    options declare, looks for what it should have caused: with `prefetch`, units with prefetch targets; with
    `rank0-loading`, meta tensors on the other ranks before the model is sharded; with `loads-checkpoint`, the report of
    a load. Only what was declared is checked.

    ## Why it is unsafe
    An option that is misspelt, read too late, or ignored by this code path is believed to be in force. The run is
    slower, needs more memory, or trains from random values, and its log says otherwise.

    ## What to do
    Look where the option is read, and whether this code path reads it before the model is built. Declare what a part of
    the contract was to ensure as an invariant with a checker of your own.
    """

    code = "D109"
    name = "option-inert"
    phase = Phase.D1
    severity = Severity.WARNING
    needs = (Section.MODEL,)
    options_type = RunOptions

    noun = "declaration"

    def subjects(self, facts: Facts) -> Iterator[tuple[str, str]]:
        """Run options that are declared, and parts of the contract without effect, with the reason why."""
        yield from _without_effect(facts.contract) if facts.contract else ()
        options: RunOptions = self.options
        if options.prefetch:
            yield "prefetch", ""
        if options.rank0_loading and facts.environment.rank != 0:
            yield "rank0-loading", ""
        if options.loads_checkpoint:
            yield "loads-checkpoint", ""

    def judge(self, subject: tuple[str, str], facts: Facts) -> Iterator[Finding]:
        setting, why = subject
        if setting == "prefetch":
            yield from self.prefetch(facts)
        elif setting == "rank0-loading":
            yield from self.rank0_loading(facts)
        elif setting != "loads-checkpoint":
            yield self.inert(setting, f"{setting} is declared and has no effect: {why}", {})
        elif facts.load is None:
            named = facts.checkpoint.path if facts.checkpoint is not None else "a checkpoint"
            yield self.inert("loads-checkpoint", f"{named} is to be loaded, and no load is on record", {})

    def subject_name(self, subject: tuple[str, str]) -> str:
        return subject[0]

    def prefetch(self, facts: Facts) -> Iterator[Finding]:
        if facts.sharding is None:
            raise NotEvaluated(f"whether units prefetch: {facts.why_absent(Section.SHARDING)}")
        units = facts.sharding.units
        if not any(unit.forward_prefetch or unit.backward_prefetch for unit in units):
            text = f"prefetch is wanted, and none of {counted(len(units), 'unit')} has a prefetch target"
            yield self.inert("prefetch", text, {"units": [unit.name for unit in units[:50]]})

    def rank0_loading(self, facts: Facts) -> Iterator[Finding]:
        model = facts.require(Section.MODEL)
        rank = facts.environment.rank
        if facts.sharding is not None and facts.sharding.units:
            raise NotEvaluated("the model is sharded already, and what the rank held before is not on record")
        real = [tensor.fqn for tensor in model.parameters if not tensor.is_meta]
        if real:
            text = f"rank 0 alone is to load, and rank {rank} holds {counted(len(real), 'parameter')} with storage"
            yield self.inert("rank0-loading", text, {"tensors": real[:50]}, (rank,))

    def inert(self, option: str, text: str, evidence: dict[str, object], ranks: tuple[int, ...] = ()) -> Finding:
        return self.finding(subject=option, kind=SubjectKind.CONFIG, message=text, evidence=evidence, ranks=ranks)


def _without_effect(contract: ContractFacts) -> Iterator[tuple[str, str]]:
    """The settings of the contract that are declared and that no rule looks at, and why."""
    if contract.parity_cases:
        yield "contract.parity-cases", "no rule runs a module and its reference on the same input"
    if any(probe.stages for probe in contract.probes):
        yield "contract.probes[].stages", "values are compared once, at the moment of the run"
    if any(probe.comparison != "exact" for probe in contract.probes):
        yield "contract.probes[].comparison", "V002 compares every weight bit by bit"
    if any(probe.replica_check for probe in contract.probes):
        yield "contract.probes[].replica-check", "V003 compares the replicas of every weight, declared or not"
    if contract.data is not None and contract.data.context_parallel_replicated:
        yield "contract.data.context-parallel-replicated", "a trace does not keep what the batches of other ranks hold"
    if contract.data is not None and contract.data.deterministic_replay:
        yield "contract.data.deterministic-replay", "a trace does not keep what a batch holds, so none can be compared"
