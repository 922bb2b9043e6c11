"""Which exceptions are a user's mistake, and how they read."""

from __future__ import annotations


def describe(error: BaseException) -> tuple[str, bool]:
    """
    One text for `error`, and whether it says all that a user needs.

    That is so for what shardlint raises on purpose, public exception classes of its own, and for what the operating
    system refuses (a full disk, a folder that may not be read). Anything else is a defect of shardlint or of a library
    below it, and its text alone would help nobody.
    """
    kind = type(error)
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}", True
    deliberate = kind.__module__.partition(".")[0] == "shardlint" and not kind.__name__.startswith("_")
    text = str(error).rstrip()
    if deliberate and text:
        return text, True
    return f"{kind.__name__}: {text}".rstrip(": "), deliberate
