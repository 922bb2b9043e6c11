"""D529 adapter-incomplete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.adapter_files import AdapterPlaces, adapter_places
from shardlint.facts import EntryFacts
from shardlint_rules._files import READ_FILES

_PAIRS = (("lora_A", "lora_B"), ("lora_embedding_A", "lora_embedding_B"))


@frozen
class _Tensor:
    """
    A tensor of the adapter: its key, what is stored under it, and the live tensor and its shape.

    `keys` are all stored keys, `places` is None without a live adapter to compare with.
    """

    key: str
    entry: EntryFacts | None
    name: str | None
    shape: tuple[int, ...] | None
    keys: Mapping[str, EntryFacts]
    places: AdapterPlaces | None


class AdapterIncomplete(Rule):
    """
    An adapter file does not hold the tensors of the adapter.

    ## What it does
    Compares every tensor of an adapter file with the live adapter, by the keys under which PEFT would save it: each
    live tensor must be stored, each stored one must be live, and the shapes must be equal. Without a live adapter it
    looks at the file alone: tensors without elements, halves of a LoRA pair without the other, and ranks that are not
    those of `adapter_config.json`.

    ## Why it is unsafe
    An adapter tensor that is not stored keeps its initial value: a LoRA whose B matrices are missing changes nothing,
    and the metrics are those of the base model. Files with empty tensors are what saving a sharded model without
    gathering it leaves.

    ## What to do
    Save the adapter again from the model that was trained, with its parameters gathered, or load it into the model and
    with the configuration that it was trained with.
    """

    code = "D529"
    name = "adapter-incomplete"
    phase = Phase.D5
    severity = Severity.ERROR
    needs = (Section.CHECKPOINT,)
    tags = (READ_FILES,)

    noun = "tensor"

    def subjects(self, facts: Facts) -> Iterator[_Tensor]:
        """Every tensor of the file, and every live one that it must hold."""
        checkpoint = facts.require(Section.CHECKPOINT)
        if checkpoint.format != "adapter":
            return
        stored = checkpoint.entry_by_key()
        places = adapter_places(facts.model, checkpoint) if facts.model else None
        live = facts.model.tensor_by_name() if facts.model and places else {}
        filled = places.filled(facts.model) if facts.model and places else frozenset()
        for key in {**stored, **(places.wanted if places else {})}:
            if key not in stored and places is not None and places.wanted[key] in filled:
                continue
            name = None if places is None else places.wanted.get(key, places.places.get(key))
            tensor = live.get(name or "")
            yield _Tensor(key, stored.get(key), name, tensor.shape if tensor else None, stored, places)

    def judge(self, subject: _Tensor, facts: Facts) -> Iterator[Finding]:
        config = facts.require(Section.CHECKPOINT).adapter_config
        if wrong := _fault(subject, config):
            yield self.finding(
                subject=subject.key,
                kind=SubjectKind.KEY,
                message=wrong,
                evidence={
                    "tensor": subject.name,
                    "stored": None if subject.entry is None else subject.entry.shape,
                    "live": subject.shape,
                },
            )


def _fault(subject: _Tensor, config: Mapping[str, Any] | None) -> str:
    """What is wrong with the tensor, empty when nothing is."""
    entry, places = subject.entry, subject.places
    if entry is None and subject.name == "":
        return f"the adapter's key {subject.key} is not stored"
    if entry is None:
        return f"the adapter's tensor {subject.name} is not stored: expected the key {subject.key}"
    if 0 in entry.shape:
        return f"{subject.key} is stored without any element: its shape is {list(entry.shape)}"
    if places is not None and subject.name is None:
        return f"no tensor of the live adapter {places.name} takes the stored key {subject.key}"
    if subject.shape is not None and subject.shape != entry.shape:
        return (
            f"{subject.key}: expected the stored shape to be {list(subject.shape)}, that of {subject.name}, found "
            f"{list(entry.shape)}"
        )
    if places is None and (other := _other_half(subject.key)) and other not in subject.keys:
        return f"{subject.key} is stored, and its other half {other} is not"
    return _rank_fault(subject.key, entry, config)


def _other_half(key: str) -> str:
    parts = key.split(".")
    for pair in _PAIRS:
        for one, two in (pair, pair[::-1]):
            if one in parts:
                return ".".join(two if part == one else part for part in parts)
    return ""


def _rank_fault(key: str, entry: EntryFacts, config: Mapping[str, Any] | None) -> str:
    """Whether the rank of a LoRA matrix is none that the configuration gives."""
    parts = key.split(".")
    dim = 0 if "lora_A" in parts else 1 if "lora_B" in parts else None
    rank = config.get("r") if config else None
    if dim is None or len(entry.shape) != 2 or not isinstance(rank, int) or config is None:
        return ""
    plain = config.get("peft_type") == "LORA" and not config.get("target_parameters")
    pattern = config.get("rank_pattern") or {}
    ranks = {rank, *(pattern.values() if isinstance(pattern, Mapping) else ())}
    if not plain or entry.shape[dim] in ranks:
        return ""
    return f"{key} is stored with rank {entry.shape[dim]}, and adapter_config.json says {rank}"
