"""Quantisation schemes as they lie in files: which stored parts belong together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import frozen

from shardlint.analysis.model_config import quantisation_settings
from shardlint.facts import CheckpointFacts, EntryFacts

FP8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
PACKED = ("U8", "I8", "I32", "F4")


@frozen(kw_only=True)
class Scheme:
    """
    How one scheme stores a tensor.

    `carriers` are the suffixes of quantised values (empty: the tensor's own name), `dtypes` their dtypes. `needs` are
    alternatives for each part that must be there: suffixes put in place of the carrier's.
    """

    name: str
    carriers: tuple[str, ...]
    dtypes: tuple[str, ...]
    needs: tuple[tuple[str, ...], ...]


SCHEMES = (
    Scheme(name="fp8", carriers=("",), dtypes=FP8, needs=(("_scale_inv", "@.scale", "@.qscale_weight"),)),
    Scheme(name="mxfp8", carriers=("",), dtypes=FP8, needs=(("_scale_inv", "@.scale", "_scale"),)),
    Scheme(name="compressed-tensors float", carriers=("",), dtypes=FP8, needs=(("_scale",),)),
    Scheme(name="compressed-tensors int8", carriers=("",), dtypes=("I8",), needs=(("_scale",),)),
    Scheme(name="compressed-tensors packed", carriers=("_packed",), dtypes=("I32",), needs=(("_scale",), ("_shape",))),
    Scheme(
        name="compressed-tensors nvfp4", carriers=("_packed",), dtypes=("U8",), needs=(("_scale",), ("_global_scale",))
    ),
    Scheme(name="nvfp4", carriers=("",), dtypes=("U8",), needs=(("_scale",), ("_scale_2",))),
    Scheme(name="mxfp4", carriers=("_blocks",), dtypes=("U8",), needs=(("_scales",),)),
    Scheme(name="gptq", carriers=("@.qweight",), dtypes=("I32",), needs=(("@.scales",), ("@.qzeros",))),
    Scheme(name="awq", carriers=("@.qweight",), dtypes=("I32",), needs=(("@.scales",), ("@.qzeros",))),
    Scheme(name="bitsandbytes 8-bit", carriers=("",), dtypes=("I8",), needs=(("@.SCB",),)),
    Scheme(
        name="bitsandbytes 4-bit",
        carriers=("",),
        dtypes=("U8",),
        needs=((".absmax",), (".quant_map",), (".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4")),
    ),
)
_BY_NAME = {scheme.name: scheme for scheme in SCHEMES}


def scheme_of(checkpoint: CheckpointFacts) -> tuple[Scheme | None, str]:
    """Return the scheme of the checkpoint and how it was recognised; None when there is none or it is not known."""
    settings = quantisation_settings(checkpoint.config)
    if settings is not None:
        name = _declared(settings)
        said = f"config.json declares {settings.get('quant_method', settings.get('quant_algo', 'a scheme'))}"
        return (_BY_NAME[name], said) if name else (None, f"{said}, which is not known")
    keys = {entry.key for entry in checkpoint.entries}
    scores = {scheme.name: score for scheme in SCHEMES if (score := _score(scheme, checkpoint.entries, keys))}
    if not scores:
        return None, "nothing declares a scheme, and no scales are stored"
    best = max(scores, key=lambda name: scores[name])
    return _BY_NAME[best], "recognised by its stored parts"


def _declared(settings: Mapping[str, Any]) -> str | None:
    method = str(settings.get("quant_method", settings.get("quant_algo", ""))).lower()
    if method == "compressed-tensors":
        form = str(settings.get("format", ""))
        return {
            "float-quantized": "compressed-tensors float",
            "int-quantized": "compressed-tensors int8",
            "pack-quantized": "compressed-tensors packed",
            "nvfp4-pack-quantized": "compressed-tensors nvfp4",
        }.get(form)
    if method == "bitsandbytes":
        return "bitsandbytes 8-bit" if settings.get("load_in_8bit") else "bitsandbytes 4-bit"
    if method == "modelopt":
        return "nvfp4" if "NVFP4" in str(settings) else None
    return method if method in _BY_NAME else None


def _score(scheme: Scheme, entries: Iterable[EntryFacts], keys: set[str]) -> int:
    """Count the carriers of which every part is there."""
    return sum(not missing_parts(scheme, base, keys) for _, base in carriers(scheme, entries))


def carriers(scheme: Scheme, entries: Iterable[EntryFacts]) -> Iterator[tuple[EntryFacts, str]]:
    """Yield the entries that hold quantised values of this scheme, with the name that its parts are built from."""
    for entry in entries:
        if entry.dtype not in scheme.dtypes or len(entry.shape) < (2 if scheme.carriers == ("",) else 1):
            continue
        for suffix in scheme.carriers:
            if suffix == "" and not _is_part(entry.key):
                yield entry, entry.key
            elif suffix.startswith("@.") and entry.key.endswith(suffix[1:]):
                yield entry, entry.key[: -len(suffix[1:])] + ".weight"
            elif suffix.startswith("_") and entry.key.endswith(suffix):
                yield entry, entry.key.removesuffix(suffix)


def missing_parts(scheme: Scheme, base: str, keys: set[str]) -> list[str]:
    """Return, for every part of the tensor `base` that is not stored, the first name that it could have."""
    wanted = ([part_name(base, suffix) for suffix in alternatives] for alternatives in scheme.needs)
    return [names[0] for names in wanted if not any(name in keys for name in names)]


def part_name(base: str, suffix: str) -> str:
    """Return the name of a part: `suffix` after the tensor's name, or in place of its last segment (`@.scale`)."""
    return f"{base.rpartition('.')[0]}{suffix[1:]}" if suffix.startswith("@") else base + suffix


# Every name of a part that some scheme gives, longest first; scales of the KV cache belong to no weight.
_WEIGHT_SCALES = ("_scale_inv", "_global_scale", "_scale_2", "_scale", "_scales")
_SCALES = (*_WEIGHT_SCALES, ".scale", ".qscale_weight", ".SCB", ".absmax")
_PACKS = ("_blocks", "_packed", "_shape", "_zero_point", "_g_idx")
_OTHERS = (*_PACKS, ".qweight", ".qzeros", ".scales", ".g_idx", ".quant_map")
_CACHE = ("k_scale", "v_scale", "q_scale", "kv_scale", "prob_scale", "prob_output_scale", "output_scale")
_ACTIVATION = ("input_scale", "activation_scale", "input_global_scale", "input_scale_ub", "act_scale")


def _is_part(key: str) -> bool:
    return key.endswith(_SCALES + _OTHERS) or ".quant_state." in key or ".nested_" in key


def scale_of(key: str) -> str | None:
    """Return the name of the tensor whose scale `key` is by its spelling, None when it is not a weight scale."""
    leaf = key.rpartition(".")[2]
    if leaf in _CACHE or leaf in _ACTIVATION or leaf.endswith(_ACTIVATION):
        return None
    for suffix in sorted(_SCALES, key=len, reverse=True):
        if key.endswith(suffix):
            base = key.removesuffix(suffix)
            return f"{base}.weight" if suffix in (".scale", ".qscale_weight", ".SCB") else base
    return None
