"""D515 header-corrupt."""

from __future__ import annotations

from shardlint import Phase, Severity
from shardlint_rules._files import FileProblemRule


class HeaderCorrupt(FileProblemRule):
    """
    The header of a weight file or the index contradicts itself or the file.

    ## What it does
    Reports what reading the header found wrong: its length, its JSON, the fields of its tensors, dtypes that do not
    exist, a shape that does not give the byte range, ranges out of bounds, overlapping or with holes between them, keys
    given twice, bytes behind the last tensor; an index that is not valid JSON or not of the right form; and the
    `.metadata` of torch.distributed.checkpoint, which is read without executing anything.

    ## Why it is unsafe
    A reader that does not check takes bytes of one tensor for another, or garbage for weights.

    ## What to do
    Fetch or write the file again. Do not repair a header by hand: the bytes behind it are as doubtful.
    """

    code = "D515"
    name = "header-corrupt"
    phase = Phase.D5
    severity = Severity.ERROR
    of_opened = True
    sayings = {
        "header-length": "the header's length is impossible",
        "header-json": "the header is not valid JSON",
        "header-schema": "the header is not of the right form",
        "header-too-large": "the header is larger than any reader accepts",
        "unknown-dtype": "the dtype does not exist in the format",
        "shape-size": "shape and dtype do not give the number of bytes",
        "offsets": "the byte range is out of bounds",
        "overlap": "two tensors share bytes",
        "hole": "bytes belong to no tensor",
        "duplicate-key": "a key is given twice",
        "trailing-bytes": "bytes follow the last tensor",
        "index-json": "the index is not valid JSON",
        "index-schema": "the index is not of the right form",
        "metadata-stream": "the metadata cannot be read",
        "metadata-schema": "the metadata is not of the right form",
    }
