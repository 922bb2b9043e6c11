"""D108 wrap-class-missing."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.ties import outermost
from shardlint.facts import ShardingFacts
from shardlint.names import closest

_LIBRARY = "transformers."


@frozen(kw_only=True)
class WrapOptions:
    """`classes`: names of the classes that are to be wrapped; empty for what the model's class declares."""

    classes: tuple[str, ...] = ()


class WrapClassMissing(Rule):
    """
    No module of the model is of a class that is to be wrapped.

    ## What it does
    Takes the class names that are to become units of their own: the option `classes`, else the `_no_split_modules` of
    the model's class. When none of them is the class of any module, automatic wrapping finds nothing; the finding is
    an error when the model is sharded and all its units are the root. Names that are absent beside others that resolve
    are not reported; what classes of Transformers declare is looked at only once it mattered, because parts of a model
    inherit it, and stays a warning then.

    ## Why it is unsafe
    A wrap policy that matches nothing raises nothing: all parameters land in one unit, which is gathered as a whole.
    Memory peaks at the unsharded model, and nothing overlaps.

    ## What to do
    Name a class that the model has (the repeated block), in the configuration of the wrap policy or in the class.
    """

    code = "D108"
    name = "wrap-class-missing"
    phase = Phase.D1
    severity = Severity.WARNING
    needs = (Section.MODEL,)
    related_config = ("fsdp_transformer_layer_cls_to_wrap", "fsdp_wrap_modules")
    options_type = WrapOptions

    noun = "wrap policy"

    def subjects(self, facts: Facts) -> Iterator[_Policy]:
        model = facts.require(Section.MODEL)
        if self.options.classes:
            yield _Policy("the option", self.options.classes, False, "option")
            return
        for item in outermost(model.declarations):
            if item.no_split_modules:
                own_class = model.qualified_type if not item.fqn else item.qualified_type
                shipped = own_class.startswith(_LIBRARY)
                yield _Policy(own_class, item.no_split_modules, shipped, "class")

    def judge(self, subject: _Policy, facts: Facts) -> Iterator[Finding]:
        wanted, model = subject.classes, facts.require(Section.MODEL)
        present = {module.qualified_type.rpartition(".")[2] for module in model.modules}
        if not present.isdisjoint(wanted):
            return
        landed = facts.sharding is not None and _all_in_root(facts.sharding)
        if subject.shipped and not landed:
            return  # parts of a library's models inherit what the whole declares
        near = [name for wanted_name in wanted for name in closest(wanted_name, present, 1)]
        more = f"; the model has {', '.join(dict.fromkeys(near))}" if near else ""
        yield self.finding(
            subject=", ".join(wanted),
            kind=SubjectKind.CONFIG,
            severity=Severity.ERROR if landed and not subject.shipped else None,
            message=f"expected modules of the class {' or '.join(wanted)}, found none{more}"
            + ("; every parameter landed in the root unit" if landed else ""),
            evidence={"classes": wanted, "nearest": near, "from": subject.source},
        )


@frozen
class _Policy:
    """Classes that are to be wrapped: who says so, and whether that is a class of Transformers."""

    name: str
    classes: tuple[str, ...]
    shipped: bool
    source: str


def _all_in_root(sharding: ShardingFacts) -> bool:
    sharded = [unit for unit in sharding.units if unit.kind != "ddp"]
    return bool(sharded) and all(unit.at_root for unit in sharded)
