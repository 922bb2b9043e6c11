"""A model built on meta from a checkpoint's `config.json`: no weights, no files, no network, no remote code."""

from __future__ import annotations

import contextlib
import copy
import random
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from ..analysis.model_config import LOADED_QUANTISATION, quantisation_settings
from ..facts import CheckpointFacts, FrozenDict, thaw
from ..names import first_line
from .build_limits import BuildGivenUp, build_limits
from .config_refusal import refusal
from .loader import ConfigRefusedError, PlanUnknownError
from .releases import frame_of, has_conversions, lacks, version
from .trial import is_ordinary, try_building

MAX_MODULES = 2_000_000
_HELPERS = ("no_tie_weights", "meta_device_safe_creation_ops")
# The largest number that any model has, by the name of its key; what names an id or a constant has no limit.
_LIMITS = (
    (re.compile(r"id$|ids$|index$|seed|theta|param", re.IGNORECASE), None),
    (re.compile(r"vocab|labels|bucket|position|len|size|dim|token", re.IGNORECASE), 2**24),
    (re.compile(r"layer|depth|block|stage|expert|head", re.IGNORECASE), 50_000),
    (re.compile(""), 2**27),
)
# What could reach for other files, for the hub, or for code.
_DROPPED = re.compile(
    r"auto_map|(_|^)(attn|experts)_implementation(_|$)|use_kernels?|kernel_config|quantization_config"
)


@frozen(kw_only=True)
class BuiltModel:
    """The model on meta and the quantiser that would load its checkpoint (None without one)."""

    model: Any
    quantizer: Any = None


class _TooLargeError(Exception):
    pass


def build_meta_model(checkpoint: CheckpointFacts) -> BuiltModel:
    """
    Build the architecture that the checkpoint's configuration names.

    Raises `PlanUnknownError` when there is no configuration, when Transformers does not know the architecture, and
    when building it would be unreasonably large or needs what is not installed; `ConfigRefusedError` when Transformers
    refuses the configuration.
    """
    if checkpoint.config is None:
        raise PlanUnknownError("the folder has no readable config.json, so its architecture is unknown")
    version()
    plain = _cleaned(thaw(checkpoint.config), "")
    with _isolated():
        try:
            if not is_ordinary(plain):
                try_building(plain)
            with build_limits():
                config, kind = _config_and_class(plain)
                model = _model(config, kind, _dtype(config, checkpoint))
        except BuildGivenUp as error:
            raise PlanUnknownError(f"building the architecture of config.json was given up: {error}") from error
        except PlanUnknownError:
            raise
        except _TooLargeError as error:
            raise PlanUnknownError(f"building the architecture of config.json would make {error}") from error
        except (ImportError, OSError, NotImplementedError, MemoryError, RecursionError) as error:
            raise _not_built(error) from error  # something that is not installed, or not at hand without a network
        except Exception as error:
            raise refusal(error, plain) or _not_built(error) from error
        try:
            with _default_dtype(config.dtype):
                return BuiltModel(model=model, quantizer=_quantizer(checkpoint.config, config, model, config.dtype))
        except Exception as error:  # most need a library or a device that is not here
            raise _not_built(error) from error


def build_like(kind: type, config: Any) -> Any:
    """
    Build a model class on meta by the configuration of a live model, which is not changed.

    Raises `PlanUnknownError` when it cannot be built.
    """
    import torch

    with _isolated():
        try:
            dtype = getattr(config, "dtype", None)
            return _model(copy.deepcopy(config), kind, dtype if isinstance(dtype, torch.dtype) else torch.float32)
        except Exception as error:
            raise _not_built(error) from error


def build_plain(plain: dict[str, Any]) -> Any:
    """Build the model of a configuration that was cleaned. Raises whatever building raises."""
    import torch

    with _isolated():
        config, kind = _config_and_class(plain)
        return _model(config, kind, torch.float32)


def _not_built(error: Exception) -> PlanUnknownError:
    text = f"{type(error).__name__}: {first_line(error)} (Transformers {version()}, {frame_of(error)})"
    absent = [name for name in _HELPERS if not _has_helper(name)]
    because = f"; {lacks(f'initialization.{absent[-1]}')}" if absent else ""
    return PlanUnknownError(f"the architecture of config.json cannot be built: {text}{because}")


def _has_helper(name: str) -> bool:
    """Whether the release has a context manager that its own loader builds models in."""
    try:
        from transformers import initialization
    except ImportError:
        return False
    return hasattr(initialization, name)


def _helpers() -> Iterator[Any]:
    for name in _HELPERS:
        if _has_helper(name):
            from transformers import initialization

            yield getattr(initialization, name)()


def _cleaned(value: Any, key: str) -> Any:
    """Return the configuration without what may reach outside, refusing numbers that no model has."""
    if isinstance(value, dict):
        if set(value) == {"__float__"}:
            return float(value["__float__"])  # Transformers' spelling of what JSON cannot say
        return {name: _cleaned(item, name) for name, item in value.items() if not _DROPPED.search(name)}
    if isinstance(value, list):
        return [_cleaned(item, key) for item in value]
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)  # as facts spell it: Python's JSON writes these without quotes, and older files hold them
    if isinstance(value, int) and not isinstance(value, bool):
        limit = next(limit for pattern, limit in _LIMITS if pattern.search(key))
        if limit is not None and abs(value) > limit:
            raise ConfigRefusedError(f"{value} is more than any model has", key)
    return value


@contextlib.contextmanager
def _isolated() -> Iterator[None]:
    """Keep the random state, the warnings, the log and the network as they are while a model is built."""
    import torch
    from huggingface_hub import constants
    from transformers.utils import logging

    verbosity, offline, state = logging.get_verbosity(), constants.HF_HUB_OFFLINE, random.getstate()
    logging.set_verbosity(logging.CRITICAL)
    constants.HF_HUB_OFFLINE = True
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        constants.HF_HUB_OFFLINE = offline
        random.setstate(state)


def _model(config: Any, kind: Any, dtype: Any) -> Any:
    """Build the class on meta, as the loader does."""
    import torch

    config.dtype = dtype
    for name in getattr(config, "sub_configs", ()):
        if getattr(config, name, None) is not None:
            getattr(config, name).dtype = dtype
    config._attn_implementation = "eager"
    with contextlib.ExitStack() as stack:
        for context in (_default_dtype(dtype), torch.device("meta"), *_helpers(), _bounded()):
            stack.enter_context(context)
        model = kind(config)
    if not has_conversions():
        model.tie_weights()  # there the loader knows a tie by the shared tensor
    return model


@contextlib.contextmanager
def _default_dtype(dtype: Any) -> Iterator[None]:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _config_and_class(plain: dict[str, Any]) -> tuple[Any, Any]:
    """Return the configuration and the class that it names, as the class's own `from_pretrained` would read it."""
    import transformers
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    names = plain.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None
    kind = getattr(transformers, name, None) if name else None
    config_class = _config_class(plain, kind, CONFIG_MAPPING)
    config = config_class.from_dict(plain)
    if name is None:
        kind = AutoModel._model_mapping.get(type(config), None)
        kind = kind[0] if isinstance(kind, (tuple, list)) else kind
    if not _is_model_class(kind):
        shown = repr(name)[:60] if name else f"a model class for {config.model_type!r:.60}"
        raise PlanUnknownError(f"Transformers {version()} has no architecture {shown}; remote code is not run")
    return config, kind


def _config_class(plain: Mapping[str, Any], kind: Any, known: Mapping[str, Any]) -> Any:
    model_type = plain.get("model_type")
    if isinstance(model_type, str) and model_type in known:
        return known[model_type]
    if model_type is None:  # old configurations do not say it; the class knows its own
        found = getattr(kind, "config_class", None) if _is_model_class(kind) else None
        if found is not None:
            return found
        raise PlanUnknownError("config.json names no model_type, so its architecture is unknown")
    raise PlanUnknownError(f"Transformers {version()} knows no model type {model_type!r:.60}; remote code is not run")


def _is_model_class(kind: Any) -> bool:
    import transformers

    return isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)


def _dtype(config: Any, checkpoint: CheckpointFacts) -> Any:
    """Return what `dtype="auto"` gives: the configuration's, else that of the first stored floating-point tensor."""
    import torch

    value = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    if isinstance(value, str):
        value = getattr(torch, value, None)
    if isinstance(value, torch.dtype) and value.is_floating_point and value.itemsize > 1:
        return value
    names = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
    return next((names[entry.dtype] for entry in checkpoint.entries if entry.dtype in names), torch.float32)


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """Stop a construction that registers more modules than any model has."""
    from torch.nn.modules.module import register_module_module_registration_hook

    count = 0

    def hook(*_: Any) -> None:
        nonlocal count
        count += 1
        if count > MAX_MODULES:
            raise _TooLargeError(f"more than {MAX_MODULES} modules")

    handle = register_module_module_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _quantizer(stored: FrozenDict | None, config: Any, model: Any, dtype: Any) -> Any:
    """Return the quantiser that loads the checkpoint into `model`, after it swapped the modules that it swaps."""
    settings = quantisation_settings(stored, LOADED_QUANTISATION)
    if settings is None:
        return None
    quantizer = make_quantizer(settings)
    config.quantization_config = quantizer.quantization_config
    quantizer.validate_environment(device_map=None, weights_only=True)
    quantizer.preprocess_model(model=model, dtype=dtype, device_map=None, checkpoint_files=[], use_kernels=False)
    return quantizer


def make_quantizer(settings: Mapping[str, Any]) -> Any:
    """Return Transformers' quantiser for stored `settings`. Raises what Transformers raises."""
    from transformers.quantizers.auto import AutoHfQuantizer

    return AutoHfQuantizer.from_config(thaw(settings), pre_quantized=True)


def dequantizer(settings: Mapping[str, Any]) -> Any:
    """
    Return the quantiser of weights that were decoded while they were loaded, or since.

    Raises `PlanUnknownError` for a scheme that nothing decodes, and what Transformers raises, which names the library
    that is missing.
    """
    quantizer = make_quantizer(settings)
    if hasattr(quantizer.quantization_config, "dequantize"):
        quantizer.quantization_config.dequantize = True
    elif _method(settings) != "bitsandbytes":
        raise PlanUnknownError(
            f"the checkpoint is stored as {_method(settings)}, the live model holds no packed weights, and "
            f"Transformers cannot decode {_method(settings)}"
        )
    quantizer.validate_environment(device_map=None, weights_only=True)
    return quantizer


def _method(settings: Mapping[str, Any]) -> str:
    return str(settings.get("quant_method", "its quantisation"))[:60]
