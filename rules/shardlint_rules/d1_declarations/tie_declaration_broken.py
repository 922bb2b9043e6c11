"""D105 tie-declaration-broken."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.ties import DeclaredTie, declared_ties, tie_wanted
from shardlint.facts import ClassDeclaration, ModelFacts
from shardlint.names import ROOT

_MAPPING_SINCE = 5  # Transformers reads {target: source} from this major version on, a list of targets before


class TieDeclarationBroken(Rule):
    """
    A class declares tied weights in a way that ties nothing.

    ## What it does
    For every class whose configuration asks for tied weights, checks that both ends of each declared tie match live
    parameters, and that the declaration has the form that the installed Transformers reads.

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

    def check(self, facts: Facts) -> Iterator[Finding]:
        model = facts.require(Section.MODEL)
        major = _major(str(facts.environment.versions.get("transformers", "")))
        unknown = []
        for declaration in model.declarations:
            if declaration.tied_weights_form in ("dict", "NoneType") or not declaration.tied_weights_names:
                continue
            if tie_wanted(declaration, model) is False:
                continue
            if major is None:
                unknown.append(f"{declaration.qualified_type} declares ties as {declaration.tied_weights_form}")
            elif major >= _MAPPING_SINCE:
                yield self._wrong_form(declaration, major)
        for tie in declared_ties(model):
            reason, doubtful = _broken(tie, model, facts.environment.world_size)
            if reason and tie.wanted is not False and not doubtful:
                yield self._broken_end(tie, reason)
            elif doubtful:
                unknown.append(f"{tie.target_pattern} may belong to another pipeline stage")
        if unknown:
            raise NotEvaluated("; ".join(unknown))

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
            subject=f"{tie.owner}.{tie.target_pattern}" if tie.owner else tie.target_pattern,
            kind=SubjectKind.PATTERN,
            message=f"the declared tie of {tie.target_pattern!r} to {tie.source_pattern!r} is broken: {reason}",
            evidence={"target": tie.target_pattern, "source": tie.source_pattern, "owner": tie.owner},
            owner=tie.owner or ROOT,
        )


def _broken(tie: DeclaredTie, model: ModelFacts, world_size: int) -> tuple[str, bool]:
    """What is wrong with the tie, and whether that may be another rank's business."""
    if tie.error:
        return tie.error, False
    ends = (("target", tie.target_pattern, tie.targets), ("source", tie.source_pattern, tie.sources))
    for end, pattern, names in ends:
        if names or _stands_for_something_else(tie.owner, pattern, model):
            continue
        return f"its {end} {pattern!r} is not a live parameter", world_size > 1
    return "", False


def _stands_for_something_else(owner: str, pattern: str, model: ModelFacts) -> bool:
    """Whether the module of a missing end holds other tensors: wrapped by an adapter, or quantised."""
    path = ".".join(part for part in (owner, pattern.rpartition(".")[0]) if part)
    return bool(path) and any(tensor.fqn.startswith(f"{path}.") for tensor in model.tensors)


def _major(version: str) -> int | None:
    head = version.partition(".")[0]
    return int(head) if head.isdigit() else None
