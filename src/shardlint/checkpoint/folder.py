"""A checkpoint folder or file, from names, sizes and headers alone: nothing executed, no tensor read, no torch."""

from __future__ import annotations

import re
from pathlib import Path

from attrs import evolve, frozen

from ..facts import AsideFacts, CheckpointFacts, EntryFacts, FileFacts, FileProblem, FrozenDict, IndexFacts, RepeatedKey
from ..introspect.attributes import gc_paused
from ..target import TargetError
from .byte_compare import ByteComparer
from .dcp import read_dcp
from .dcp_metadata import METADATA
from .files import FileRefusedError, are_adapter_keys, decodable_name, file_kind, inside, is_lfs_pointer, listed, opened
from .json_files import read_config, read_index
from .parts import nothing_here, parts_aside
from .safetensors_header import quoted, read_header
from .tokenizer import tokenizer_size
from .variants import variants_aside

SINGLE = "model.safetensors"
GENERATION = "generation_config.json"
ADAPTER = "adapter_config.json"
INDEX_SUFFIX = ".safetensors.index.json"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d+)-of-(?P<count>\d+)\.safetensors")
_LOOKED_FOR = (
    "model.safetensors, model.safetensors.index.json, any other *.safetensors or *.safetensors.index.json, "
    "adapter_model.safetensors, *.gguf, *.bin, *.pt, *.pth, a .metadata with *.distcp files"
)


class CheckpointError(TargetError):
    """A path that is not a checkpoint at all. The text says what was expected, what is there and what to do."""


@frozen(kw_only=True)
class _Choice:
    """Which files count: `names`, and the index that named them."""

    format: str
    names: tuple[str, ...] = ()
    index: IndexFacts | None = None
    problems: tuple[FileProblem, ...] = ()


def collect_checkpoint(path: Path, *, variant: str | None = None) -> CheckpointFacts:
    """
    Read the checkpoint folder or file `path`.

    Which files count follows Transformers: `config.transformers_weights`, else `model.safetensors`, else its index,
    each with `variant` in its name when one is given; every key of every file that the index names counts. In other
    folders a lone index, else all safetensors files count. Whatever is wrong with a file stands in `problems`.
    Raises `CheckpointError` when there is no such path, or nothing in it looks like weights.
    """
    path = Path(path)
    cut: tuple[FileProblem, ...] = ()
    try:
        if path.is_dir():
            found, cut = listed(path)
            folder, names = path, tuple(map(decodable_name, found))
        elif path.exists() or path.is_symlink():
            folder, names = path.parent, (path.name,)
        else:
            folder, names = None, ()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if folder is None:
        raise CheckpointError(f"{path}: expected a checkpoint, found no such file or folder")
    config, config_problems = read_config(folder)
    generation_config, generation_problems = read_config(folder, GENERATION)
    adapter_config, adapter_problems = read_config(folder, ADAPTER)
    aside = variants_aside(names, variant) if path.is_dir() else ()
    if not path.is_dir():
        choice = _choose_file(folder, path.name)
    else:
        others = {file.name for file in aside}
        choice = _choose(folder, tuple(name for name in names if name not in others), config, variant)
    if choice is None:
        raise CheckpointError(_nothing_found(path, names))
    with gc_paused():
        facts = _read_dcp(folder, names) if choice.format == "dcp" else _read(folder, names, choice, aside)
    return evolve(
        facts,
        path=str(path),
        config=config,
        problems=(*cut, *config_problems, *generation_problems, *adapter_problems, *facts.problems),
        tokenizer_size=tokenizer_size(folder),
        generation_config=generation_config,
        aside=(*aside, *(parts_aside(folder) if path.is_dir() else ())),
        adapter_config=adapter_config,
    )


def _choose_file(folder: Path, name: str) -> _Choice | None:
    if name.endswith(INDEX_SUFFIX) or (name.endswith(".json") and ".safetensors.index" in name):
        return _from_index(folder, name)
    kind = file_kind(name)
    if kind == "other":
        return None
    return _Choice(format=kind, names=(name,))


def _choose(folder: Path, names: tuple[str, ...], config: FrozenDict | None, variant: str | None) -> _Choice | None:
    explicit = config.get("transformers_weights") if config else None
    if isinstance(explicit, str) and explicit:
        if explicit.endswith(".json"):
            return _from_index(folder, explicit)
        return _Choice(format="safetensors", names=(explicit,))
    single = f"model.{variant}.safetensors" if variant else SINGLE
    index = f"model.safetensors.index.{variant}.json" if variant else SINGLE + ".index.json"
    if single in names:
        return _Choice(format="safetensors", names=(single,), problems=_stale(folder, names, single, index))
    if index in names:
        return _from_index(folder, index)
    return None if variant else _choose_other(folder, names, config)


def _stale(folder: Path, names: tuple[str, ...], single: str, name: str) -> tuple[FileProblem, ...]:
    """What is wrong with an index beside the single file that wins over it: files that it names are not there."""
    if name not in names:
        return ()
    index, _ = read_index(folder, name)
    named = sorted(set(index.weight_map.values())) if index else []
    absent = [file for file in named if not (folder / file).is_file()]
    if not absent:
        return ()
    detail = (
        f"{absent[0]} is the first of {len(absent)} of its {len(named)} files that are not there; Transformers takes "
        f"{single}, a program that reads the index finds no weights"
    )
    return (FileProblem(file=name, kind="stale-index", detail=detail),)


def _choose_other(folder: Path, names: tuple[str, ...], config: FrozenDict | None) -> _Choice | None:
    indexes = [name for name in names if name.endswith(".json") and ".safetensors.index" in name]
    if len(indexes) == 1:
        return _from_index(folder, indexes[0])
    by_kind: dict[str, list[str]] = {}
    for name in names:
        by_kind.setdefault(file_kind(name), []).append(name)
    if "safetensors" in by_kind:
        return _without_index(by_kind["safetensors"], config)
    if METADATA in names:
        return _Choice(format="dcp")
    for kind in ("adapter", "gguf", "pickle"):
        if kind in by_kind:
            readable = tuple(name for name in by_kind[kind] if name.endswith(".safetensors"))
            return _Choice(format=kind, names=readable)
    return None


def _without_index(names: list[str], config: FrozenDict | None) -> _Choice:
    """Choose among safetensors files that no index orders: all of them count."""
    present = {match["stem"]: match for name in names if (match := _SHARD.fullmatch(name))}
    problems: list[FileProblem] = []
    for stem, match in present.items():
        width, count = len(match["number"]), min(int(match["count"]), 10_000)
        wanted = (f"{stem}-{number:0{width}}-of-{match['count']}.safetensors" for number in range(1, count + 1))
        absent = [name for name in wanted if name not in names]
        problems += [
            FileProblem(file=name, kind="missing", detail="the other shards' names ask for it") for name in absent
        ]
    if len(names) > 1 and config and ("architectures" in config or "model_type" in config):
        detail = f"{len(names)} weight files and no index that orders them; Transformers does not load such a folder"
        problems.append(FileProblem(file=SINGLE + ".index.json", kind="missing", detail=detail))
    form = "safetensors" if len(names) == 1 else "safetensors-sharded"
    return _Choice(format=form, names=tuple(names), problems=tuple(problems))


def _from_index(folder: Path, name: str) -> _Choice:
    index, problems = read_index(folder, name)
    named = sorted(set(index.weight_map.values())) if index else []
    return _Choice(format="safetensors-sharded", names=tuple(named), index=index, problems=problems)


def _read(folder: Path, names: tuple[str, ...], choice: _Choice, aside: tuple[AsideFacts, ...] = ()) -> CheckpointFacts:
    other_variants = {file.name for file in aside}
    counted = dict.fromkeys(choice.names)
    files: list[FileFacts] = []
    entries: list[EntryFacts] = []
    extra: list[EntryFacts] = []
    problems = list(choice.problems)
    for name in (*counted, *(name for name in names if name not in counted)):
        facts, stored, wrong = _read_file(folder, name, counts=name in counted)
        problems += wrong
        if name in counted or name not in other_variants:  # a variant repeats every key, with other bytes
            (entries if name in counted else extra).extend(stored)
        if facts is not None:
            files.append(facts)
    return CheckpointFacts(
        path="",
        repeated_keys=_repeated(folder, tuple(files), entries, extra),
        format="adapter" if are_adapter_keys(entry.key for entry in entries) else choice.format,
        files=tuple(files),
        entries=tuple(entries),
        extra_entries=tuple(extra),
        index=choice.index,
        problems=tuple(problems),
    )


def _read_dcp(folder: Path, names: tuple[str, ...]) -> CheckpointFacts:
    """Read a folder of torch.distributed.checkpoint, and the sizes of what lies beside its files."""
    dcp = read_dcp(folder)
    files, problems = list(dcp.files), list(dcp.problems)
    told = {METADATA, *(file.name for file in files), *(problem.file for problem in problems)}
    for name in names:
        if name not in told:
            facts, _, wrong = _read_file(folder, name, counts=False)
            files += [facts] if facts is not None else []
            problems += wrong
    return CheckpointFacts(
        path="",
        format="dcp",
        files=tuple(files),
        entries=dcp.entries,
        problems=tuple(problems),
        parts=dcp.parts,
    )


def _repeated(
    folder: Path, files: tuple[FileFacts, ...], entries: list[EntryFacts], extra: list[EntryFacts]
) -> tuple[RepeatedKey, ...]:
    """Find the keys in two files and compare their bytes. Of the files that count a loader takes the last."""
    taken = {entry.key: entry for entry in entries}
    if len(taken) == len(entries) and not extra:
        return ()
    repeated = []
    with ByteComparer.of(folder, files) as comparer:
        for others, counts in ((entries, True), (extra, False)):
            for other in others:
                entry = taken.get(other.key)
                if entry is None or entry.file == other.file:
                    continue
                equal = comparer.equal(entry, other)
                repeated.append(
                    RepeatedKey(key=entry.key, file=entry.file, other_file=other.file, counts=counts, equal=equal)
                )
    return tuple(repeated)


def _read_file(
    folder: Path, name: str, *, counts: bool
) -> tuple[FileFacts | None, tuple[EntryFacts, ...], tuple[FileProblem, ...]]:
    kind = file_kind(name)
    size = 0
    try:
        real = inside(folder, name)
        size = real.stat().st_size
        if not name.endswith(".safetensors"):
            return FileFacts(name=name, size=size, kind=kind, counts=counts), (), ()
        with opened(real) as descriptor:
            if is_lfs_pointer(descriptor):
                raise FileRefusedError("lfs-pointer", "a Git-LFS pointer, the weights themselves were not fetched")
            header = read_header(descriptor, name)
    except FileRefusedError as error:
        if error.kind == "missing" and not counts and kind == "other":
            return None, (), ()
        kind = error.kind if error.kind == "lfs-pointer" else kind
        facts = None if error.kind == "missing" else FileFacts(name=name, size=size, kind=kind, counts=counts)
        return facts, (), (error.problem(name),) if counts or kind != "other" else ()
    except OSError as error:
        return None, (), (FileProblem(file=name, kind="unreadable", detail=error.strerror or str(error)),)
    facts = FileFacts(
        name=name,
        size=size,
        kind=kind,
        opened=header.read,
        header_bytes=header.data_start,
        metadata=header.metadata,
        tensors=len(header.entries),
        counts=counts,
    )
    return facts, header.entries, header.problems


def _nothing_found(path: Path, names: tuple[str, ...]) -> str:
    if path.is_file():
        return f"{path}: expected a *.safetensors file or a *.safetensors.index.json, got a file of another kind"
    snapshots = path / "snapshots"
    if snapshots.is_dir():
        inner = sorted(str(snapshot) for snapshot in snapshots.iterdir())[:5]
        return f"{path}: this is a Hugging Face cache; name one of its snapshots: {', '.join(inner) or 'it has none'}"
    shown = ", ".join(quoted(name, 60) for name in names[:8]) or "nothing"
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{path}: no weights in this folder. Looked for: {_LOOKED_FOR}. Found: {shown}{more}{nothing_here(path)}"
