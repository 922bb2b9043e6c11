"""Find packs without running their code: entry points of installed distributions, and local files and folders."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path

from attrs import frozen

from ..diagnostics import PackFault, PackOrigin
from .hookspecs import ENTRY_POINT_GROUP

_ISSUE_LABELS = ("issues", "issue tracker", "bug tracker", "bugs", "tracker", "bug reports", "support")


@frozen(kw_only=True)
class PackSource:
    """One pack that was found. `load` runs the pack's code and returns the module or object with the hooks."""

    origin: PackOrigin
    location: str
    load: Callable[[], object]
    local: bool = False


def normalized(name: str) -> str:
    """A distribution's name as the package index compares names: `Acme_Pack.x` is `acme-pack-x`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_sources(entry_points: Iterable[metadata.EntryPoint] | None = None) -> list[PackSource]:
    """The packs among `entry_points` (of every installed distribution when None), ordered by pack and distribution."""
    entries = list(_entry_points() if entry_points is None else entry_points)
    sources = [_installed(entry) for entry in entries if entry.group == ENTRY_POINT_GROUP]
    return sorted(sources, key=lambda source: (source.origin.pack, source.origin.dist, source.location))


def _entry_points() -> Iterator[metadata.EntryPoint]:
    """
    Our entry points of every distribution, the first of a name on the path only.

    `importlib.metadata.entry_points` would let one malformed file of any distribution end the search.
    """
    seen: set[str] = set()
    for dist in metadata.distributions():
        text = _entry_point_text(dist)
        if ENTRY_POINT_GROUP not in text:
            continue
        name = dist.metadata["Name"] or ""
        if normalized(name) in seen or _shadowed(dist, name):
            continue
        seen.add(normalized(name))
        yield from _parsed(dist, text)


def _entry_point_text(dist: metadata.Distribution) -> str:
    try:
        return dist.read_text("entry_points.txt") or ""
    except (OSError, ValueError):
        return ""


def _shadowed(dist: metadata.Distribution, name: str) -> bool:
    """Whether another distribution of the same name stands earlier on the path, so that its code is imported."""
    try:
        first = metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        return False
    return first.locate_file("") != dist.locate_file("")


def _parsed(dist: metadata.Distribution, text: str) -> Iterator[metadata.EntryPoint]:
    try:
        yield from (entry for entry in dist.entry_points if entry.group == ENTRY_POINT_GROUP)
    except (TypeError, ValueError):
        # A line without "=" anywhere in the file: salvage our own section, the rest is none of our business.
        section = re.split(r"^\[(.+)\]\s*$", text, flags=re.MULTILINE)
        bodies = dict(zip((name.strip() for name in section[1::2]), section[2::2], strict=False))
        for line in bodies.get(ENTRY_POINT_GROUP, "").splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                name, _, value = line.partition("=")
                entry = metadata.EntryPoint(name.strip(), value.strip(), ENTRY_POINT_GROUP)
                yield entry._for(dist)  # type: ignore[attr-defined]


def _installed(entry: metadata.EntryPoint) -> PackSource:
    about = entry.dist.metadata if entry.dist else None  # parsed again at every access
    origin = PackOrigin(
        pack=entry.name,
        dist=(about["Name"] or "unnamed distribution") if about else "",
        version=(about["Version"] or "unknown version") if about else "",
        root=root_of(entry.value.partition(":")[0].strip()),
        issues_url=_issues_url(about.get_all("Project-URL") or ()) if about else "",
    )
    return PackSource(origin=origin, location=entry.value, load=entry.load)


def _issues_url(project_urls: Iterable[str]) -> str:
    for line in project_urls:
        label, _, url = str(line).partition(",")
        if label.strip().lower() in _ISSUE_LABELS:
            return url.strip()
    return ""


def root_of(module_name: str) -> str:
    """
    The folder or file that holds the code of `module_name`: its topmost package that is not a namespace package.

    Runs no code but finders; an empty string when nothing is found.
    """
    parts = module_name.split(".")
    for count in range(1, len(parts) + 1):
        try:
            spec = importlib.util.find_spec(".".join(parts[:count]))
        except (ImportError, ValueError, AttributeError):
            return ""
        if spec is None:
            return ""
        if spec.origin and spec.has_location:
            file = Path(spec.origin)
            return str(file.parent if spec.submodule_search_locations else file)
    return ""


def local_source(path: Path) -> PackSource:
    """A local pack: a `.py` file, or a folder with an `__init__.py`. Whether it is there is found out on loading."""
    path = path.resolve()
    origin = PackOrigin(pack=path.stem, root=str(path))
    return PackSource(origin=origin, location=str(path), load=lambda: _load_local(path), local=True)


def _load_local(path: Path) -> object:
    file = path / "__init__.py" if path.is_dir() else path
    if not file.is_file():
        what = "is a folder without __init__.py" if path.is_dir() else "does not exist"
        raise PackFault(f"a local pack is a .py file or a folder with __init__.py, and {path} {what}")
    if file.suffix != ".py":
        raise PackFault(f"a local pack is a .py file or a folder with __init__.py, and {path} is neither")
    name = f"shardlint_local_{re.sub(r'[^0-9a-zA-Z_]', '_', path.stem)}_{_digest(path)}"
    _forget(name)
    folders = [str(path)] if path.is_dir() else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
    if spec is None or spec.loader is None:
        raise PackFault(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        _forget(name)
        raise
    return module


def _digest(path: Path) -> str:
    return hashlib.blake2b(str(path).encode(errors="surrogateescape"), digest_size=4).hexdigest()


def _forget(name: str) -> None:
    """Drop a local pack's modules, so that an edited pack is read again and a failed one leaves nothing behind."""
    for module in [key for key in sys.modules if key == name or key.startswith(f"{name}.")]:
        del sys.modules[module]
