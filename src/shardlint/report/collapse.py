"""Join findings of one rule that differ only in layer or expert numbers. Text only: JSON keeps every finding."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import frozen

from ..facts import FrozenDict
from ..names import collapse, collapse_exactly, natural_key, pattern_of
from ..rule import Finding

# A dotted name in running text. It may begin with a number (`0.weight`), but not inside a path or a file name.
# It holds a part that is not a number: `3.5` is none.
_NAME = re.compile(r"(?<![\w./\\-])(?=(?:\d+\.)*[^\W\d])\w+(?:\.\w+)+")


@frozen
class FindingGroup:
    """Findings that are shown as one row: `subject` and `message` name them all."""

    findings: tuple[Finding, ...]
    subject: str
    message: str
    evidence: FrozenDict

    @property
    def first(self) -> Finding:
        """The first finding in report order."""
        return self.findings[0]


def groups(findings: Sequence[Finding], *, collapse: bool = True) -> list[FindingGroup]:
    """
    The rows for `findings` of one rule, in report order.

    Every collapsed subject is an exact product: `layers.{0..3}.experts.{0,1}` stands for eight findings, all of them
    there. Findings that differ in anything but the numbers of dotted names are rows of their own.
    """
    if not collapse:
        return [FindingGroup((finding,), finding.subject, finding.message, finding.evidence) for finding in findings]
    families: dict[Any, list[Finding]] = {}
    for finding in findings:
        families.setdefault(_family(finding), []).append(finding)
    rows = [row for family in families.values() for row in _rows(family)]
    return sorted(rows, key=lambda row: natural_key(row.first.subject))


def _family(finding: Finding) -> Any:
    texts = (finding.subject, finding.message, finding.owner or "", finding.why, finding.remediation)
    shape = tuple(_template(text) for text in texts)
    return (shape, finding.severity, finding.kind, finding.ranks, _value_template(finding.evidence))


_pattern = functools.lru_cache(maxsize=4096)(pattern_of)  # subject, message and evidence repeat the name


@functools.lru_cache(maxsize=4096)
def _template(text: str) -> str:
    """`text` with the numbers of its dotted names replaced: two texts of one template differ in those alone."""
    return _NAME.sub(lambda match: _pattern(match.group()), text)


def _value_template(value: Any) -> Any:
    if isinstance(value, str):
        return _template(value)
    if isinstance(value, FrozenDict):
        return tuple((_template(key), _value_template(element)) for key, element in value.items())
    if isinstance(value, tuple):
        return tuple(_value_template(element) for element in value)
    return (type(value).__name__, value)


def _rows(family: Sequence[Finding]) -> Iterator[FindingGroup]:
    """The rows of findings that agree in all but numbers: one for every exact product of their subjects."""
    by_subject: dict[str, list[Finding]] = {}
    for finding in family:
        by_subject.setdefault(finding.subject, []).append(finding)
    for subject, names in collapse_exactly(by_subject):
        members = [finding for name in names for finding in by_subject[name]]
        message = _joined([member.message for member in members])
        yield FindingGroup(tuple(members), subject, message, _joined_value([member.evidence for member in members]))


def _joined_value(values: Sequence[Any]) -> Any:
    """One value for values of the same template."""
    first = values[0]
    if isinstance(first, str):
        return _joined(values)
    if isinstance(first, FrozenDict):
        keys = zip(*(value.keys() for value in values), strict=True)
        items = zip(*(value.values() for value in values), strict=True)
        return FrozenDict({_joined(key): _joined_value(parts) for key, parts in zip(keys, items, strict=True)})
    if isinstance(first, tuple):
        return tuple(_joined_value(items) for items in zip(*values, strict=True))
    return first


def _joined(texts: Sequence[str]) -> str:
    """One text for texts of the same template: numbers that vary become their ranges in braces."""
    if len(set(texts)) == 1:
        return texts[0]
    names = zip(*(_NAME.findall(text) for text in texts), strict=True)
    between = _NAME.split(texts[0])
    return "".join(text + name for text, name in zip(between, [*map(collapse, names), ""], strict=True))
