"""D505 shard-file-missing."""

from __future__ import annotations

from typing import ClassVar

from shardlint import Phase, Severity
from shardlint_rules._files import FileProblemRule


class ShardFileMissing(FileProblemRule):
    """
    A file of the checkpoint is not there, or is not what its name says.

    ## What it does
    Takes the files that the index names (or the single file) and reports those that are absent, empty, cut short, a
    Git-LFS pointer in place of the payload, or not readable. Files that the index does not name are
    told as information. An index beside a single file that wins over it is a warning when files that it names are
    absent: loaders differ in which of the two they read.
    File names are never interpreted: how many parts there are is what the index says.

    ## Why it is unsafe
    Every tensor of the file is without a source. Loaders differ in whether they stop, and a pointer file or a download
    that broke off looks like a file to everything that only lists names.

    ## What to do
    Fetch the file again (`git lfs pull` for a pointer) and compare its size with the one at its origin.
    """

    code = "D505"
    name = "shard-file-missing"
    phase = Phase.D5
    severity = Severity.ERROR
    sayings = {
        "missing": "the file is not there",
        "empty": "the file is empty",
        "truncated": "the file ends before its tensors do",
        "lfs-pointer": "a Git-LFS pointer stands in place of the payload",
        "unreadable": "the file cannot be read",
        "changed": "the file changed while it was read",
        "stale-index": "the index names files that are absent, beside a single file that wins over it",
    }
    severities: ClassVar[dict[str, Severity]] = {"stale-index": Severity.WARNING}
