"""D105 tie-declaration-broken."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.ties import DeclaredTie, declared_ties, tie_wanted
from shardlint.facts import ClassDeclaration, ModelFacts
from shardlint.names import ROOT, joined

_MAPPING_SINCE = 5  # Transformers reads {target: source} from this major version on, a list of targets before


class TieDeclarationBroken(Rule):
    """
    A class, or the contract, declares tied weights in a way that ties nothing.

    ## What it does
    For every class whose configuration asks for tied weights, or that no configuration describes, and for the `ties` of
    the contract, checks that both ends of each declared tie match live parameters, and that the declaration of a class
    has the form that the installed Transformers reads.

    ## Why it is unsafe
    The two tensors are initialised and trained apart, and the saved checkpoint holds one of them: what is loaded later
    is another model than the one that was trained.

    ## What to do
    Write the tie as `{"target.weight": "source.weight"}` with the names of the live parameters, relative to the class
    that declares it.
    """

    code = "D105"
    name = "tie-declaration-broken"
    phase = Phase.D1
    severity = Severity.ERROR
    needs = (Section.MODEL,)
    related_config = ("contract.ties",)

    noun = "declared tie"

    def subjects(self, facts: Facts) -> Iterator[ClassDeclaration | tuple[DeclaredTie, _Names]]:
        """The declarations in another form than a mapping, and every single tie that is asked for, or may be."""
        model = facts.require(Section.MODEL)
        for declaration in model.declarations:
            mapping = declaration.tied_weights_form in ("dict", "NoneType")
            if not mapping and declaration.tied_weights_names and tie_wanted(declaration, model) is not False:
                yield declaration
        names = _Names(model)
        for tie in declared_ties(model, facts.contract):
            if tie.wanted is not False:
                yield tie, names

    def judge(self, subject: ClassDeclaration | tuple[DeclaredTie, _Names], facts: Facts) -> Iterator[Finding]:
        if isinstance(subject, ClassDeclaration):
            yield from self._form(subject, facts)
            return
        tie, names = subject
        reason = _broken(tie, names)
        if reason and not tie.error and facts.environment.world_size > 1:
            raise NotEvaluated(f"{tie.target_pattern} may belong to another pipeline stage")
        if reason:
            yield self._broken_end(tie, reason)

    def subject_name(self, subject: ClassDeclaration | tuple[DeclaredTie, _Names]) -> str:
        if isinstance(subject, ClassDeclaration):
            return subject.fqn or ROOT
        return joined(subject[0].owner, subject[0].target_pattern)

    def _form(self, declaration: ClassDeclaration, facts: Facts) -> Iterator[Finding]:
        major = _major(str(facts.environment.versions.get("transformers", "")))
        if major is None:
            raise NotEvaluated(f"{declaration.qualified_type} declares ties as {declaration.tied_weights_form}")
        if major >= _MAPPING_SINCE:
            yield self._wrong_form(declaration, major)

    def _wrong_form(self, declaration: ClassDeclaration, major: int) -> Finding:
        return self.finding(
            subject=declaration.fqn or ROOT,
            kind=SubjectKind.MODULE,
            message=f"{declaration.qualified_type} declares its tied weights as {declaration.tied_weights_form}: "
            f"expected a mapping of targets to sources, which is what Transformers {major} reads",
            evidence={"form": declaration.tied_weights_form, "names": declaration.tied_weights_names},
            key="form",
        )

    def _broken_end(self, tie: DeclaredTie, reason: str) -> Finding:
        return self.finding(
            subject=joined(tie.owner, tie.target_pattern),
            kind=SubjectKind.PATTERN,
            message=f"the declared tie of {tie.target_pattern!r} to {tie.source_pattern!r} is broken: {reason}",
            evidence={
                "target": tie.target_pattern,
                "source": tie.source_pattern,
                "owner": tie.owner,
                "declared_by": tie.declared_by,
            },
            owner=tie.owner or ROOT,
        )


class _Names:
    """The names of modules below which tensors stand, whatever adapters and quantisations call those."""

    def __init__(self, model: ModelFacts) -> None:
        self.holders: set[str] = set()
        for tensor in model.tensors:
            for alias in tensor.aliases:
                name = alias.rpartition(".")[0]
                while name and name not in self.holders:
                    self.holders.add(name)
                    name = name.rpartition(".")[0]


def _broken(tie: DeclaredTie, names: _Names) -> str:
    """What is wrong with the tie, an empty string when nothing is."""
    if tie.error:
        return tie.error
    ends = (("target", tie.target_pattern, tie.targets), ("source", tie.source_pattern, tie.sources))
    for end, pattern, matched in ends:
        # A module that holds other tensors is wrapped by an adapter, or quantised.
        replaced = joined(tie.owner, pattern.rpartition(".")[0]) in names.holders and not tie.declared_by
        if not matched and not replaced:
            return f"its {end} {pattern!r} is not a live parameter"
    return ""


def _major(version: str) -> int | None:
    head = version.partition(".")[0]
    return int(head) if head.isdigit() else None
