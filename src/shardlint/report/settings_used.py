"""Which settings shaped a verdict, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..names import counted

DEFAULT_FAIL_LEVEL = "error"


def settings_lines(used: Mapping[str, Any]) -> Iterator[str]:
    """The settings files, and how they shaped the verdict; those that were found and are not used."""
    if used.get("files"):
        text = f"settings: {', '.join(used['files'])}"
        effects = settings_effects(used)
        yield f"{text}: {', '.join(effects)}" if effects else text
    for warning in used.get("not_used", ()):
        yield f"warning: {warning}"


def settings_effects(used: Mapping[str, Any]) -> list[str]:
    """What the settings in `Report.metadata` do to a verdict, in words."""
    done = (("switched_off", "switched off"), ("lowered", "lowered"), ("suppressed", "suppressed"))
    effects = [f"{counted(len(used[key]), 'rule')} {what}" for key, what in done if used[key]]
    effects += [f"options of {counted(len(used['options']), 'rule')}"] if used["options"] else []
    effects += [f"fail level {used['fail_level']}"] if used["fail_level"] != DEFAULT_FAIL_LEVEL else []
    effects += ["a contract"] if used["contract"] else []
    effects += [counted(used["renames"], "rename")] if used["renames"] else []
    return effects
