"""Which exceptions are a user's mistake, and how they read."""

from __future__ import annotations


def describe(error: BaseException) -> tuple[str, bool]:
    """
    One text for `error`, and whether it was raised on purpose.

    What shardlint raises on purpose are public exception classes of its own; anything else is a defect of shardlint
    (or of a library below it), and its text alone would help nobody.
    """
    kind = type(error)
    deliberate = kind.__module__.partition(".")[0] == "shardlint" and not kind.__name__.startswith("_")
    text = str(error).rstrip()
    if deliberate and text:
        return text, True
    return f"{kind.__name__}: {text}".rstrip(": "), deliberate
