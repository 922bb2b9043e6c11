"""The `checkpoint` section: what lies on disk, read from names, sizes and headers alone."""

from __future__ import annotations

from attrs import frozen

from .frozen import EMPTY, FrozenDict
from .unknown import Unknown

# The format's names of dtypes, with torch's. F4 and F6 are left out: they are not dtypes of single elements in torch.
TORCH_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "I32": "int32",
    "U32": "uint32",
    "I64": "int64",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


@frozen(kw_only=True)
class EntryFacts:
    """One tensor of one file. `begin` and `end` are byte offsets within the file's data part, as its header says."""

    key: str
    dtype: str  # the format's own name: F32, BF16, F8_E4M3, ...
    shape: tuple[int, ...]
    file: str
    begin: int
    end: int


@frozen(kw_only=True)
class FileProblem:
    """
    Something wrong with one file. `kind` is one word of a closed list:

    missing, empty, truncated, lfs-pointer, unreadable, header-length, header-json, header-schema, header-too-large,
    unknown-dtype, shape-size, offsets, overlap, hole, duplicate-key, trailing-bytes, escapes-folder, changed,
    index-json, index-schema, stale-index, config-json, config-refused (`key` is then the dotted field),
    metadata-stream, metadata-schema, chunk-unplaced, chunk-bounds, chunk-overlap, chunk-hole.
    """

    file: str
    kind: str
    detail: str
    key: str | None = None


@frozen(kw_only=True)
class FileFacts:
    """
    One file of the checkpoint folder. `name` is relative to the folder; `size` is in bytes.

    `kind` is safetensors, pickle, gguf, dcp, adapter, lfs-pointer or other; `opened` says whether its header was read,
    `counts` whether a loader reads it (named by the index, or the single file). The data part begins `header_bytes`
    bytes into the file.
    """

    name: str
    size: int
    kind: str
    opened: bool = False
    header_bytes: int = 0
    metadata: FrozenDict = EMPTY
    tensors: int = 0
    counts: bool = False


@frozen(kw_only=True)
class IndexFacts:
    """A `*.index.json`: its weight map (key to file name) and the rest of its metadata."""

    name: str
    weight_map: FrozenDict
    total_size: int | None = None
    metadata: FrozenDict = EMPTY


@frozen(kw_only=True)
class RepeatedKey:
    """
    One key stored in two files. A loader takes it from `file`; it stands in `other_file` as well.

    `counts` when a loader reads `other_file` too. `equal` says whether the bytes are the same, None when they were
    not compared.
    """

    key: str
    file: str
    other_file: str
    counts: bool = False
    equal: bool | None = None


@frozen(kw_only=True)
class RenameFacts:
    """
    One renaming of the settings: `source` is a regular expression, `target` what replaces its matches.

    `matched` counts the stored keys that it changes, after the renamings before it; `merged` are the first of those
    that had different names before and have one afterwards. `problem` says why it cannot be applied.
    """

    source: str
    target: str
    matched: int
    merged: tuple[str, ...] = ()
    problem: str = ""


@frozen(kw_only=True)
class AsideFacts:
    """
    A file or subfolder with weights that lies in the folder and is not read with it; `detail` says why.

    `kind` is variant (the same weights in another dtype), part (the folder names it as a part of the model) or
    subfolder (weights of their own).
    """

    name: str
    kind: str
    detail: str


@frozen(kw_only=True)
class CheckpointFacts:
    """
    A checkpoint folder or file, nothing executed and no tensor read.

    `entries` are those of the files that count (named by the index, or the single file); `extra_entries` those of
    weight files beside them. `config` is the folder's `config.json`, None when there is none. `overlay_declared` when
    the owner says that the loader takes each key from the file that the index names, so that repeated keys are meant.
    `renames` are the owner's renamings of keys, with what they do here.
    `tokenizer_size` is the number of tokens of the tokenizer next to the weights, None when there is none
    and unknown when one cannot be read;
    `generation_config` is the folder's `generation_config.json`, None when there is none; `adapter_config` its
    `adapter_config.json`.

    In a folder of torch.distributed.checkpoint (`dcp`) an entry is a whole tensor: its `file` is that of its first
    chunk, `begin` 0 and `end` its size. `parts` are the dotted names of the state dicts that such a folder nests.
    `aside` is what lies there too and was not read.
    """

    path: str
    format: str  # safetensors, safetensors-sharded, adapter, dcp, gguf, pickle
    files: tuple[FileFacts, ...] = ()
    entries: tuple[EntryFacts, ...] = ()
    extra_entries: tuple[EntryFacts, ...] = ()
    index: IndexFacts | None = None
    config: FrozenDict | None = None
    problems: tuple[FileProblem, ...] = ()
    repeated_keys: tuple[RepeatedKey, ...] = ()
    overlay_declared: bool = False
    tokenizer_size: int | Unknown | None = None
    generation_config: FrozenDict | None = None
    parts: tuple[str, ...] = ()
    adapter_config: FrozenDict | None = None
    renames: tuple[RenameFacts, ...] = ()
    aside: tuple[AsideFacts, ...] = ()

    def entry_by_key(self) -> dict[str, EntryFacts]:
        """Every stored key with its entry; of a key stored twice the one in the file that the index names."""
        mapped = self.index.weight_map if self.index else EMPTY
        found: dict[str, EntryFacts] = {}
        for entry in self.entries:
            if entry.key not in found or mapped.get(entry.key) == entry.file:
                found[entry.key] = entry
        return found
