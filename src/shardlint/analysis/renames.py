"""What the renamings of the settings do to stored keys. No torch."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from ..facts import RenameFacts

_MOST_MERGED = 20


def rename_facts(renames: Sequence[tuple[str, str]], keys: Iterable[str]) -> tuple[RenameFacts, ...]:
    """
    Apply the renamings, pairs of a regular expression and its replacement, to `keys` in turn, and count.

    Keys that had different names before a renaming and have one afterwards are merged by it.
    """
    names = {key: key for key in keys}
    found: list[RenameFacts] = []
    for source, target in renames:
        try:
            pattern = re.compile(source)
            changed = {key: pattern.subn(target, name) for key, name in names.items()}
        except (re.error, IndexError) as error:
            found.append(RenameFacts(source=source, target=target, matched=0, problem=str(error)))
            continue
        after = {key: name for key, (name, _) in changed.items()}
        matched = sum(count > 0 for _, count in changed.values())
        merged = _merged(names, after) if matched else ()
        found.append(RenameFacts(source=source, target=target, matched=matched, merged=merged))
        names = after
    return tuple(found)


def _merged(before: dict[str, str], after: dict[str, str]) -> tuple[str, ...]:
    """Keys that share a name now and did not before."""
    groups: dict[str, list[str]] = defaultdict(list)
    for key, name in after.items():
        groups[name].append(key)
    wrong = [keys for keys in groups.values() if len({before[key] for key in keys}) > 1]
    return tuple(key for keys in wrong for key in keys)[:_MOST_MERGED]
