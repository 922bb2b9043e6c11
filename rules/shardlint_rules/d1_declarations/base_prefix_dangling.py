"""D107 base-prefix-dangling."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.ties import outermost
from shardlint.facts import ClassDeclaration, PlanFacts
from shardlint.names import counted, joined


class BasePrefixDangling(Rule):
    """
    `base_model_prefix` names no attribute of a class that holds its base model under another name.

    ## What it does
    Looks at root classes whose `base_model_prefix` is not an attribute. If the load plan has keys without a live tensor
    that would have one below another attribute of the root, the prefix is needed and names the wrong place. A base
    model, which is what the prefix stands for, needs no such attribute.

    ## Why it is unsafe
    Loaders strip and add exactly this prefix to load a base checkpoint into a class with a head, and the other way
    round. With a name that leads nowhere, every tensor of the base model is reported missing, and starts from random
    values.

    ## What to do
    Set `base_model_prefix` to the attribute that holds the base model, or rename the attribute.
    """

    code = "D107"
    name = "base-prefix-dangling"
    phase = Phase.D1
    severity = Severity.ERROR
    needs = (Section.MODEL,)

    noun = "base-model prefix"

    def subjects(self, facts: Facts) -> Iterator[ClassDeclaration]:
        for declaration in outermost(facts.require(Section.MODEL).declarations):
            if declaration.base_model_prefix:
                yield declaration

    def judge(self, subject: ClassDeclaration, facts: Facts) -> Iterator[Finding]:
        if subject.base_model_present:
            return
        if facts.plan is None:
            if _holds_its_base(subject, facts.require(Section.MODEL).declarations):
                raise NotEvaluated(f"whether keys need the prefix: {facts.why_absent(Section.PLAN)}")
            return
        for attribute, keys in _needed(facts.plan, subject.fqn).items():
            yield self.finding(
                subject=f"{subject.qualified_type}.base_model_prefix",
                kind=SubjectKind.CONFIG,
                message=f"base_model_prefix is {subject.base_model_prefix!r}, which is not an attribute; "
                f"{counted(len(keys), 'stored key')} would be live below {attribute!r}, such as {keys[0]}",
                evidence={"prefix": subject.base_model_prefix, "attribute": attribute, "keys": keys[:50]},
                key=attribute,
            )


def _holds_its_base(root: ClassDeclaration, declarations: tuple[ClassDeclaration, ...]) -> bool:
    """Whether a child of the class declares the same prefix, as the base model itself does."""
    return any(
        declaration.fqn == joined(root.fqn, declaration.fqn.rpartition(".")[2])
        and declaration.fqn != root.fqn
        and declaration.base_model_prefix == root.base_model_prefix
        for declaration in declarations
    )


def _needed(plan: PlanFacts, fqn: str) -> dict[str, list[str]]:
    """Return the attributes of `fqn` below which unexpected keys would fill missing tensors, with those keys."""
    start = f"{fqn}." if fqn else ""
    missing = {
        tensor.name.removeprefix(start)
        for tensor in plan.tensors
        if tensor.status == "missing" and tensor.name.startswith(start)
    }
    attributes = sorted({name.partition(".")[0] for name in missing})
    needed: dict[str, list[str]] = {}
    for leftover in plan.leftovers:
        for attribute in attributes if leftover.reason == "unexpected" else ():
            if f"{attribute}.{leftover.renamed.removeprefix(start)}" in missing:
                needed.setdefault(attribute, []).append(leftover.key)
    return needed
