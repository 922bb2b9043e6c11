"""
What TARGET on the command line means, and how it becomes live objects or facts. Importing this needs no torch.

`package.module:callable`, `path/file.py:callable`, a checkpoint folder or file, a facts file (`.json`), `-` for facts
on standard input. Whatever a user can get wrong is a `TargetError` that says what to do.
"""

from __future__ import annotations

import codecs
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from attrs import evolve, frozen

from ..checkpoint.parts import nothing_here
from ..diagnostics import error_text
from ..facts import BuildFacts, Facts
from ..facts.codec import decode_facts
from ..introspect.importing import ImportProblem, frame_of, import_object
from ..introspect.plain import encodable
from ..target import Target, TargetError, expanded

CHECKPOINT_SUFFIXES = (".safetensors",)
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
MAX_FACTS = 2**30  # bytes; the facts of the largest models take a tenth of it
_FIRST_BYTES = 4096
FORMS = (
    "expected package.module:callable, path/file.py:callable, a checkpoint folder or .safetensors file, "
    "a facts file (.json), or - for facts on standard input"
)


@frozen(kw_only=True)
class Resolved:
    """
    What a target turned out to be: `kind` is live, checkpoint, facts or build-failed.

    `target` holds the live objects (for a checkpoint: its path alone), `facts` what a facts file held, and `build`
    what became of the builder.
    """

    kind: str
    text: str
    target: Target | None = None
    facts: Facts | None = None
    build: BuildFacts | None = None


def resolve(text: str, arguments: Sequence[str] | Mapping[str, Any] = (), *, stdin: BinaryIO | None = None) -> Resolved:
    """
    Find out what `text` points at and build it. `arguments` are the `name=value` pairs of `--arg`, or a mapping.

    Raises `TargetError` for everything that is the user's to fix. A builder that raises is not such an error: the
    result then says so in `build`.
    """
    values = parse_arguments(arguments)
    if _is_callable_form(text):
        return _build(text, values)
    if values:
        raise TargetError(f"--arg is for targets that are called, and {text!r} is not one: {FORMS}")
    if not text:
        raise TargetError(f"an empty target: {FORMS}")
    if text == "-":
        if stdin is None and sys.stdin is None:
            raise TargetError("standard input is closed; expected facts as `shardlint snapshot` writes them")
        data = _bounded(stdin or sys.stdin.buffer, "standard input")
        return Resolved(kind="facts", text="-", facts=_decode(data, "standard input"))
    path = expanded(text)
    if not path.exists():
        raise TargetError(_no_such(text))
    if path.suffix in (*CHECKPOINT_SUFFIXES, *PICKLE_SUFFIXES) and not (path.is_file() or path.is_dir()):
        raise TargetError(f"target {text!r}: expected a checkpoint file, got a pipe or device; it was not opened")
    if path.is_fifo() or path.is_char_device():  # <(command), a named pipe, /dev/stdin: it can be read once
        return Resolved(kind="facts", text=text, facts=_decode(_content(path), text))
    if path.is_file() and _may_hold_facts(path):
        return _facts_file(path)
    _check_checkpoint(path)
    return Resolved(kind="checkpoint", text=text, target=Target(checkpoint=path, name=text))


def parse_arguments(arguments: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """
    Turn `name=value` pairs into keyword arguments; values are YAML scalars, so `8`, `0.5`, `true`, `null` are not text.

    Raises `TargetError` for a pair without `=`, a name that is not an identifier, a name given twice, a value that is
    no scalar. In a mapping only strings are read so; other values are taken as they are.
    """
    if isinstance(arguments, Mapping):
        return {
            name: _scalar(f"{name}={value}", value) if isinstance(value, str) else value
            for name, value in arguments.items()
        }
    values: dict[str, Any] = {}
    for pair in arguments:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise TargetError(f"--arg {pair!r}: expected name=value with a Python name, for example layers=2")
        if name in values:
            raise TargetError(f"--arg {pair!r}: {name} was given before")
        values[name] = _scalar(pair, value)
    return values


def _scalar(pair: str, value: str) -> Any:
    import yaml

    if value in ("none", "None"):
        return None
    try:
        loaded = yaml.safe_load(value) if value else ""
    except (yaml.YAMLError, ValueError, RecursionError):  # not YAML, or a date that does not exist: then it is text
        return value
    if loaded is None or isinstance(loaded, (bool, int, float, str)):
        return loaded
    if isinstance(loaded, (list, dict)):
        raise TargetError(
            f"--arg {pair!r}: expected a number, true, false, null or text, got a {type(loaded).__name__}"
        )
    return value  # a date, for instance


def _is_callable_form(text: str) -> bool:
    path, colon, name = text.rpartition(":")
    if not (colon and path and name) or Path(text).exists():
        return False
    return path.endswith(".py") or ("/" not in text and "\\" not in text)


def _build(text: str, values: Mapping[str, Any]) -> Resolved:
    try:
        builder = import_object(text)
    except ImportProblem as problem:
        if problem.cause is None:
            raise TargetError(f"target {text!r}: {problem}") from None
        return _failed(text, problem.cause, problem.origin)
    if not callable(builder):
        if _is_module(builder) or isinstance(builder, Target):
            return _live(text, builder)
        raise TargetError(
            f"target {text!r}: expected a callable that returns a module or a shardlint.Target, "
            f"got {type(builder).__name__}"
        )
    if _is_module(builder) or isinstance(builder, Target):
        return _live(text, builder)
    try:
        built = builder(**values)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, and the private ones of torch, pytest, asyncio
        if isinstance(error, TypeError) and error.__traceback__ is not None and error.__traceback__.tb_next is None:
            raise TargetError(f"target {text!r} cannot be called with these arguments: {error}") from None
        return _failed(
            text, error, getattr(sys.modules.get(getattr(builder, "__module__", None) or ""), "__file__", None)
        )
    return _live(text, built)


def _live(text: str, built: Any) -> Resolved:
    target = built if isinstance(built, Target) else Target(model=built)
    if built is None:
        raise TargetError(f"target {text!r}: expected a torch.nn.Module or a shardlint.Target, got None{_hint(built)}")
    if target.model is None and target.checkpoint is None:
        raise TargetError(f"target {text!r}: the Target that it returned has neither a model nor a checkpoint")
    if target.model is not None and not _is_module(target.model):
        raise TargetError(
            f"target {text!r}: expected a torch.nn.Module or a shardlint.Target, got "
            f"{type(target.model).__name__}{_hint(target.model)}"
        )
    target = target if target.name else evolve(target, name=text)
    build = BuildFacts(builder=text)
    return Resolved(kind="live", text=text, target=target, build=build)


def _hint(value: Any) -> str:
    if isinstance(value, tuple) and any(_is_module(element) for element in value):
        return "; return shardlint.Target(model=..., optimizer=..., load_info=...) instead of a tuple"
    if inspect.iscoroutine(value):
        value.close()  # nobody is going to await it, and Python would say so in a warning
        return "; the builder is an async function: give one that runs it and returns the model"
    if isinstance(value, type):
        return "; return an instance, not the class"
    return "; does the builder return what it built?" if value is None else ""


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _failed(text: str, error: BaseException, origin: str | None) -> Resolved:
    build = BuildFacts(
        builder=text,
        failed=True,
        error_type=type(error).__name__,
        error=encodable(error_text(error)),
        frame=frame_of(error, origin),
    )
    return Resolved(kind="build-failed", text=text, target=Target(name=text), build=build)


def _no_such(text: str) -> str:
    if text.endswith(".py"):
        return f"target {text!r}: no such file, and a Python file needs a callable: path/file.py:callable"
    hint = " (to name a builder, write package.module:callable)" if "/" not in text and "." in text else ""
    return f"target {text!r}: no such file or folder{hint}; {FORMS}"


def _may_hold_facts(path: Path) -> bool:
    """Whether this is JSON by its name or, as `snapshot -o` takes any name, by its first character."""
    if path.suffix == ".json" or path.suffix in (".py", *CHECKPOINT_SUFFIXES, *PICKLE_SUFFIXES):
        return path.suffix == ".json"
    try:
        with path.open("rb") as stream:
            return stream.read(64).lstrip().startswith(b"{")
    except OSError:
        return False


def _facts_file(path: Path) -> Resolved:
    if path.name.endswith(".index.json"):
        raise TargetError(f"target {str(path)!r} is a checkpoint's index; point at its folder: {str(path.parent)!r}")
    if path.name == "config.json":
        raise TargetError(f"target {str(path)!r} is a configuration; point at its folder: {str(path.parent)!r}")
    return Resolved(kind="facts", text=str(path), facts=_decode(_content(path), str(path)))


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return _bounded(stream, f"target {str(path)!r}")
    except OSError as error:
        raise TargetError(f"target {str(path)!r} cannot be read: {error.strerror}") from None


def _bounded(stream: BinaryIO, where: str) -> bytes:
    """All bytes of a stream that begins like JSON. Raises `TargetError` for any other, and beyond `MAX_FACTS`."""
    data = stream.read(_FIRST_BYTES)
    if data.strip() and not data.lstrip().startswith((b"{", codecs.BOM_UTF8)):
        return data  # whatever it is, and however long: no facts
    data += stream.read(MAX_FACTS + 1 - len(data))
    if len(data) > MAX_FACTS:
        raise TargetError(f"{where}: expected facts of at most {MAX_FACTS} bytes, got more")
    return data


def _decode(data: bytes, where: str) -> Facts:
    if not data.strip():
        raise TargetError(f"{where} is empty; expected facts as `shardlint snapshot TARGET -o FILE` writes them")
    try:
        return decode_facts(data)
    except Exception as error:  # the decoder's own errors name the path of what is wrong
        problem = f"{where} holds no facts as `shardlint snapshot TARGET -o FILE` writes them: {error}"
        raise TargetError(problem) from None


def _check_checkpoint(path: Path) -> None:
    if path.is_dir():
        names = [child.name for child in path.iterdir()]
        if not any(_weights(name) for name in names):
            contents = f"; it holds {', '.join(sorted(names)[:5])}" if names else "; it is empty"
            inner = sorted(str(child) for child in (path / "snapshots").iterdir())[:5] if "snapshots" in names else []
            if inner:
                contents = f"; this is a Hugging Face cache, name one of its snapshots: {', '.join(inner)}"
            raise TargetError(
                f"target {str(path)!r}: expected a checkpoint folder with *.safetensors files, found none{contents}"
                f"{nothing_here(path)}"
            )
        return
    if path.suffix == ".py":
        raise TargetError(f"target {str(path)!r}: name the callable as well, {path!s}:callable")
    if path.suffix not in CHECKPOINT_SUFFIXES:
        raise TargetError(f"target {str(path)!r} is not a checkpoint file that can be read; {FORMS}")


def _weights(name: str) -> bool:
    suffixes = (*CHECKPOINT_SUFFIXES, *PICKLE_SUFFIXES, ".gguf", ".distcp")
    return name.endswith(suffixes) or name.endswith(".safetensors.index.json") or name == ".metadata"
