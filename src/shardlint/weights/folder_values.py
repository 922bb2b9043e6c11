"""What the values of a folder look like, as plain data, and what of it is suspicious. No torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from attrs import field, frozen

from ..names import natural_key, pattern_of

# No trained weight is that large; it is what the bits of other data, or of unwritten memory, look like.
ABSURD = 1e12
# The share of elements below the smallest normal number from which on a tensor is no weight.
SUBNORMAL_SHARE = 0.125
# The share of all elements in constant matrices from which on the folder cannot be meant.
ERASED_SHARE = 0.25
_SMALL = 16


@frozen(kw_only=True)
class StoredValues:
    """
    The values of one stored tensor: counts in elements, `low` and `high` of those that are finite.

    `numbers` when it has a floating-point dtype; of others only `digest` is known, which is that of the bits.
    `order_free` is the same for tensors of the same elements in any order.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    numbers: bool
    elements: int
    nonfinite: int
    first_nonfinite: tuple[int, ...]
    zeros: int
    subnormal: int
    low: float
    high: float
    digest: str
    order_free: int
    pattern: str = field(init=False, default="")

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "pattern", pattern_of(self.name))

    @property
    def is_matrix(self) -> bool:
        """Whether it is a weight with two dimensions or more, that is no mask by its name."""
        wide = sum(size > 1 for size in self.shape) > 1 and self.elements >= _SMALL
        return self.numbers and wide and "mask" not in self.name

    @property
    def varies(self) -> bool:
        """Whether it holds different values."""
        return self.low != self.high or bool(self.nonfinite)

    @property
    def constant(self) -> bool:
        """Whether all elements are the same number."""
        return self.numbers and self.elements > 1 and not self.varies


@frozen(kw_only=True)
class FolderValues:
    """
    All tensors of a folder. `refused` are those that cannot be read, with the reason.

    `transposed` are pairs of kin of which one is the other transposed. `interrupted` when the run ended early.
    """

    tensors: tuple[StoredValues, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    transposed: tuple[tuple[str, str], ...] = ()
    interrupted: bool = False

    @property
    def elements(self) -> int:
        """How many elements were read."""
        return sum(values.elements for values in self.tensors)


@frozen(kw_only=True)
class Suspicion:
    """
    Something suspicious about tensors of one pattern. `what` is nonfinite, absurd, subnormal, constant, layers or
    transposed; `level` is error, warning or info.
    """

    what: str
    names: tuple[str, ...]
    message: str
    level: str = "error"


def suspicions(folder: FolderValues) -> Iterator[Suspicion]:
    """What is suspicious, worst first, one for all tensors of a pattern."""
    told: set[str] = set()
    for what, holds, message in _BROKEN:
        groups: dict[str, list[StoredValues]] = defaultdict(list)
        for values in folder.tensors:
            if values.name not in told and holds(values):
                groups[values.pattern].append(values)
        for members in groups.values():
            told.update(values.name for values in members)
            yield Suspicion(what=what, names=_names(members), message=message(members))
    yield from _constant(folder)
    yield from _layers(folder)
    for first, second in folder.transposed:
        yield Suspicion(
            what="transposed", names=(second,), message=f"it is {first} transposed, bit for bit", level="warning"
        )


def _names(members: Sequence[StoredValues]) -> tuple[str, ...]:
    return tuple(sorted((values.name for values in members), key=natural_key))


def _is_absurd(values: StoredValues) -> bool:
    if not values.numbers or values.dtype == "float8_e8m0fnu":
        return False
    return max(-values.low, values.high) >= ABSURD and not _is_mask(values)


def _is_mask(values: StoredValues) -> bool:
    """A mask is zero where it lets through, and one large negative number elsewhere."""
    return "mask" in values.name or (values.high == 0.0 and values.zeros > 0)


def _is_subnormal(values: StoredValues) -> bool:
    return values.elements >= _SMALL and values.subnormal >= SUBNORMAL_SHARE * values.elements


def _nonfinite_text(members: Sequence[StoredValues]) -> str:
    first = members[0]
    return (
        f"{_share(members, sum(values.nonfinite for values in members))} infinite or not a number; the first is at "
        f"{list(first.first_nonfinite)} of {first.name}"
    )


def _absurd_text(members: Sequence[StoredValues]) -> str:
    largest = max(max(-values.low, values.high) for values in members)
    return f"values of up to {largest:.3g}{_several(members)}: these are no trained weights"


def _subnormal_text(members: Sequence[StoredValues]) -> str:
    return (
        f"{_share(members, sum(values.subnormal for values in members))} smaller than any normal number, as in memory "
        "that nobody wrote"
    )


def _share(members: Sequence[StoredValues], count: int) -> str:
    whole = sum(values.elements for values in members)
    return f"{count:,} of {whole:,} elements{_several(members)} {'is' if count == 1 else 'are'}"


def _several(members: Sequence[StoredValues]) -> str:
    return f" in {len(members)} tensors" if len(members) > 1 else ""


_BROKEN = (
    ("nonfinite", lambda values: values.nonfinite > 0 and not _is_mask(values), _nonfinite_text),
    ("absurd", _is_absurd, _absurd_text),
    ("subnormal", _is_subnormal, _subnormal_text),
)


def _constant(folder: FolderValues) -> Iterator[Suspicion]:
    """
    Matrices of one number. Ones are masks or scales.

    They are an error where they are much of the folder, a warning in a layer, information where there is only one.
    """
    matrices = [values for values in folder.tensors if values.is_matrix]
    wrong = [values for values in matrices if values.constant and values.low != 1.0]
    whole = sum(values.elements for values in matrices)
    much = sum(values.elements for values in wrong) >= ERASED_SHARE * whole
    groups: dict[tuple[str, float], list[StoredValues]] = defaultdict(list)
    for values in wrong:
        groups[values.pattern, values.low].append(values)
    for (pattern, number), members in groups.items():
        level = "error" if much else "warning" if "*" in pattern.split(".") else "info"
        what = "zero" if number == 0.0 else f"{number:.6g}"
        yield Suspicion(
            what="constant", names=_names(members), message=f"every element{_several(members)} is {what}", level=level
        )


def _layers(folder: FolderValues) -> Iterator[Suspicion]:
    """Layers (whatever has a number in its name) that equal an earlier one of the same kind, bit for bit."""
    held: dict[str, dict[str, StoredValues]] = defaultdict(dict)
    for values in folder.tensors:
        parts = values.name.split(".")
        for at, part in enumerate(parts):
            if part.isdigit() and values.numbers:
                held[".".join(parts[: at + 1])][".".join(parts[at + 1 :])] = values
    first: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}
    told: list[str] = []
    for layer in sorted(held, key=lambda name: (name.count("."), natural_key(name))):
        tensors = held[layer]
        if not any(values.is_matrix and values.varies for values in tensors.values()):
            continue
        bits = tuple(sorted((name, values.digest) for name, values in tensors.items()))
        key = layer.rpartition(".")[0], bits
        other = first.setdefault(key, layer)
        if other != layer and not any(layer.startswith(f"{outer}.") for outer in told):
            told.append(layer)
            message = f"all {len(tensors)} tensors are those of {other}, bit for bit"
            yield Suspicion(what="layers", names=(layer,), message=message, level="warning")
