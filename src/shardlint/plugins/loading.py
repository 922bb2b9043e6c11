"""Load one pack: run its code, ask each of its hooks by itself, and turn whatever goes wrong into findings."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from types import CodeType
from typing import Any

import pluggy
from attrs import define, evolve, field

from .._version import __version__
from ..diagnostics import PackFault, PackOrigin, code_frame, pack_failed
from ..facts import PACK_SECTION, Section
from ..names import did_you_mean
from ..rule import Finding, Phase, Rule
from .discovery import PackSource
from .hookspecs import API_VERSION, OLDEST_API, PROJECT, PackInfo, ShardlintSpec
from .registry import (
    ContractProvider,
    PackState,
    PackStatus,
    RegisteredCollector,
    RegisteredReporter,
    RegisteredRule,
    origin_fields,
)

BUILTIN_PACK = "shardlint"
HOOKS = tuple(name for name in vars(ShardlintSpec) if name.startswith("shardlint_"))
RESERVED_PREFIXES = ("SL", "ALL")
_PREFIX = re.compile(r"[A-Z]{2,8}\Z")
_PACK_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
_FORMAT_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*\Z")


@define(kw_only=True)
class LoadedPack:
    """What one pack brings, and what went wrong with it. Filled step by step while it loads."""

    source: PackSource
    origin: PackOrigin
    info: PackInfo | None = None
    rules: list[RegisteredRule] = field(factory=list)
    collectors: list[RegisteredCollector] = field(factory=list)
    reporters: list[RegisteredReporter] = field(factory=list)
    providers: list[ContractProvider] = field(factory=list)
    failures: list[Finding] = field(factory=list)
    refused: str = ""

    def status(self) -> PackStatus:
        """The pack's state, for `shardlint packs`."""
        return PackStatus(
            name=self.origin.pack,
            dist=self.origin.dist,
            version=self.origin.version,
            api=self.info.api if self.info else None,
            prefix=self.info.prefix if self.info else None,
            status=PackState.FAILED if self.failures or self.refused else PackState.LOADED,
            location=self.source.location,
            error=self.refused or "; ".join(failure.message for failure in self.failures),
            rules=len(self.rules),
            docs_url=self.info.docs_url if self.info else "",
            issues_url=self.origin.issues_url,
        )

    def refuse(self, reason: str) -> None:
        """Keep nothing of what the pack brought."""
        self.refused = reason
        self.rules, self.collectors, self.reporters, self.providers = [], [], [], []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """
        Catch what a pack's code raises (`SystemExit` too, Ctrl-C not) and record it as SL002.

        What it prints goes to standard error: standard output belongs to the report.
        """
        try:
            with redirect_stdout(sys.stderr):
                yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.failures.append(pack_failed(self.origin, name, error))


def load_pack(source: PackSource) -> LoadedPack:
    """Load the pack that `source` found. Never raises for what the pack does wrong."""
    pack = LoadedPack(source=source, origin=source.origin)
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(ShardlintSpec)
    with pack.step("importing it"):
        plugin = source.load()
        pack.info = _introduce(manager, plugin, pack)
    if pack.failures or pack.info is None:
        return pack
    prefix = pack.info.prefix
    # Each hook's result is complete before any of it is kept: half a hook's rules would look like all of them.
    with pack.step("shardlint_rules()"):
        pack.rules += list(_rules(manager, pack.origin, prefix))
    with pack.step("shardlint_collectors()"):
        pack.collectors += list(_collectors(manager, pack.origin))
    with pack.step("shardlint_reporters()"):
        pack.reporters += list(_reporters(manager, pack.origin))
    pack.providers += _providers(manager, pack.origin)
    return pack


def _introduce(manager: pluggy.PluginManager, plugin: object, pack: LoadedPack) -> PackInfo:
    """Register the plugin, learn who it is, and refuse it unless its name, prefix and API version are right."""
    if inspect.isclass(plugin):
        raise PackFault(f"its entry point names the class {plugin.__name__}; name a module or an object")
    try:
        manager.register(plugin, name=pack.origin.pack)
    except pluggy.PluginValidationError as error:
        # A pack of another API may know hooks or arguments that this version lacks: say that first.
        peeked = getattr(plugin, "shardlint_pack", None)
        info = peeked() if callable(peeked) else None
        if isinstance(info, PackInfo):
            _check_api(info, pack.origin, _frame_of(peeked))
        raise _misfit(manager, plugin) or PackFault(f"a hook does not fit: {' '.join(str(error).split())}") from error
    impls = manager.hook.shardlint_pack.get_hookimpls()
    if not impls:
        _check_hooks(manager, plugin)
        raise PackFault("it implements no shardlint_pack(), which says the pack's name, prefix and API version")
    info = impls[0].function()
    frame = _frame_of(impls[0].function)
    if not isinstance(info, PackInfo):
        raise PackFault(f"shardlint_pack() must return a shardlint.PackInfo, it returned {type(info).__name__}", frame)
    _check_api(info, pack.origin, frame)
    _check_hooks(manager, plugin)
    _check_identity(info, pack, frame)
    return info


def _misfit(manager: pluggy.PluginManager, plugin: object) -> PackFault | None:
    """Name the first hook of `plugin` that takes an argument which shardlint does not give."""
    for name in HOOKS:
        given = getattr(manager.hook, name).spec.argnames
        function = getattr(plugin, name, None)
        taken = inspect.signature(function).parameters if inspect.isroutine(function) else ()
        extra = [argument for argument in taken if argument not in given]
        if extra:
            offer = f"it takes {', '.join(given)}" if given else "it takes none"
            return PackFault(f"{name}() has no argument {extra[0]!r}; {offer}", _frame_of(function))
    return None


def _check_api(info: PackInfo, origin: PackOrigin, frame: str) -> None:
    api = info.api
    if type(api) is not int:  # nor a bool
        raise PackFault(f"PackInfo.api must be an integer, got {api!r}", frame)
    if OLDEST_API <= api <= API_VERSION:
        return
    window = f"{API_VERSION}" if OLDEST_API == API_VERSION else f"{OLDEST_API} to {API_VERSION}"
    pack = origin.dist or "the pack"
    if api > API_VERSION:
        advice = f"Upgrade shardlint, or install an older {pack}" + (f" (<{origin.version})" if origin.dist else "")
    else:
        advice = f"Upgrade {pack}, or install an older shardlint"
    raise PackFault(f"it needs plugin API {api}; shardlint {__version__} offers {window}. {advice}", frame)


def _check_hooks(manager: pluggy.PluginManager, plugin: object) -> None:
    """Refuse a hook that does not exist, one without the marker, and wrappers (which pluggy would call differently)."""
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        function = error.plugin and _pending(manager)
        name = getattr(function, "__name__", "")
        text = f"unknown hook {name!r}{did_you_mean(name, HOOKS)}; the hooks are {', '.join(HOOKS)}"
        raise PackFault(text, _frame_of(function)) from error
    for name in HOOKS:
        impls = getattr(manager.hook, name).get_hookimpls()
        if any(impl.wrapper or impl.hookwrapper for impl in impls):
            raise PackFault(f"{name}() is a hook wrapper; shardlint calls every implementation by itself")
        if not impls and hasattr(plugin, name):
            raise _no_hook(plugin, name)


def _no_hook(plugin: object, name: str) -> PackFault:
    """What stands under a hook's name and is none, so that it would never be asked."""
    bound = getattr(plugin, name)
    if inspect.isroutine(bound):
        return PackFault(f"{name}() is not marked with @shardlint.hookimpl, so it is not a hook", _frame_of(bound))
    text = f"{name} is no function but an object of type {type(bound).__name__}"
    return PackFault(f"{text}; a hook is a function marked with @shardlint.hookimpl", _place_of(plugin, name))


def _place_of(plugin: object, name: str) -> str:
    """The line of the pack's source at which `name` is bound; empty when the source is not there."""
    try:
        lines, _ = inspect.getsourcelines(plugin if inspect.ismodule(plugin) else type(plugin))
        file = inspect.getsourcefile(plugin if inspect.ismodule(plugin) else type(plugin))
    except (OSError, TypeError):
        return ""
    bindings = (number for number, line in enumerate(lines, 1) if re.match(rf"\s*{name}\s*[:=]", line))
    return f"{file}:{number} in <module>" if (number := next(bindings, 0)) and inspect.ismodule(plugin) else str(file)


def _pending(manager: pluggy.PluginManager) -> object:
    callers = (caller for name, caller in vars(manager.hook).items() if not name.startswith("_"))
    unknown = (impl for caller in callers if not caller.has_spec() for impl in caller.get_hookimpls())
    return next((impl.function for impl in unknown), None)


def _check_identity(info: PackInfo, pack: LoadedPack, frame: str) -> None:
    for name in ("name", "prefix", "docs_url", "issues_url"):
        value = getattr(info, name)
        if not isinstance(value, str):
            raise PackFault(f"PackInfo.{name} must be a string, got {value!r}", frame)
    if not _PACK_NAME.match(info.name):
        raise PackFault(f"PackInfo.name {info.name!r} is not a name: letters, digits, '.', '_' and '-' make one", frame)
    if pack.source.local:
        pack.origin = evolve(pack.origin, pack=info.name)
    elif info.name != pack.origin.pack:
        raise PackFault(f"its entry point calls it {pack.origin.pack!r} and PackInfo.name {info.name!r}", frame)
    pack.origin = evolve(pack.origin, issues_url=pack.origin.issues_url or info.issues_url)
    if is_builtin(pack.origin) and not info.prefix:
        return
    if not _PREFIX.match(info.prefix) or info.prefix in RESERVED_PREFIXES:
        reserved = " and ".join(RESERVED_PREFIXES)
        text = f"PackInfo.prefix must be 2 to 8 capitals other than {reserved}, got {info.prefix!r}"
        raise PackFault(text, frame)


def is_builtin(origin: PackOrigin) -> bool:
    """Whether this is shardlint's own pack: its name in its own distribution, which nobody else may use."""
    return origin.pack == BUILTIN_PACK and origin.dist == BUILTIN_PACK


def _call(manager: pluggy.PluginManager, hook: str) -> Iterator[tuple[Any, str]]:
    """The result of each implementation of `hook`, with its frame. Arguments are none of these hooks' business."""
    for impl in getattr(manager.hook, hook).get_hookimpls():
        yield impl.function(), _frame_of(impl.function)


def _items(result: object, hook: str, what: str, frame: str) -> tuple[Any, ...]:
    if not isinstance(result, Iterable) or isinstance(result, (str, Mapping)):
        raise PackFault(f"{hook} must return {what}, it returned {type(result).__name__}", frame)
    return tuple(result)


def _rules(manager: pluggy.PluginManager, origin: PackOrigin, prefix: str) -> Iterator[RegisteredRule]:
    for result, frame in _call(manager, "shardlint_rules"):
        # The same class twice is one rule; order is the pack's own.
        for fromkey in dict.fromkeys(_items(result, "shardlint_rules()", "Rule classes", frame)):
            _check_rule(fromkey, origin, prefix, frame)
            yield RegisteredRule(rule_class=fromkey, **origin_fields(origin))


def _check_rule(candidate: object, origin: PackOrigin, prefix: str, frame: str) -> None:
    if not (inspect.isclass(candidate) and issubclass(candidate, Rule)):
        got = f"the instance {candidate!r}" if isinstance(candidate, Rule) else repr(candidate)
        raise PackFault(f"shardlint_rules() must return subclasses of shardlint.Rule, it returned {got}", frame)
    if "page" not in vars(candidate):
        raise PackFault(f"{candidate.__qualname__} is a base for rules (abstract=True), not a rule", frame)
    if is_builtin(origin) and not prefix:
        good = candidate.code[:1] in "DV" and candidate.code.startswith(candidate.phase.value[:1])
        wanted = "begin with its phase"
    else:
        good, wanted = candidate.code[:-3] == prefix, f"be its prefix {prefix} and three digits"
    if not good:
        raise PackFault(f"the code of rule {candidate.code} {candidate.name} must {wanted}", frame)
    if candidate.phase is Phase.ENGINE:
        raise PackFault(
            f"rule {candidate.code} {candidate.name} is of phase ENGINE, which is for shardlint itself", frame
        )


def _collectors(manager: pluggy.PluginManager, origin: PackOrigin) -> Iterator[RegisteredCollector]:
    for result, frame in _call(manager, "shardlint_collectors"):
        for collector in _items(result, "shardlint_collectors()", "collectors", frame):
            name, section = getattr(collector, "name", None), getattr(collector, "section", None)
            section = section.value if isinstance(section, Section) else section
            known = [*(member.value for member in Section), f"{PACK_SECTION}{origin.pack}"]
            if not isinstance(name, str) or section not in known or not callable(getattr(collector, "collect", None)):
                wanted = f"a name, a section (one of {', '.join(known)}) and a method collect()"
                raise PackFault(
                    f"a collector needs {wanted}; {collector!r} has name {name!r}, section {section!r}", frame
                )
            yield RegisteredCollector(name=name, section=str(section), collector=collector, **origin_fields(origin))


def _reporters(manager: pluggy.PluginManager, origin: PackOrigin) -> Iterator[RegisteredReporter]:
    for result, frame in _call(manager, "shardlint_reporters"):
        if not isinstance(result, Mapping):
            text = "shardlint_reporters() must return a mapping of format names to callables"
            raise PackFault(f"{text}, it returned {type(result).__name__}", frame)
        for name, reporter in result.items():
            if not isinstance(name, str) or not _FORMAT_NAME.match(name) or not callable(reporter):
                text = "a reporter is a lower-case name with hyphens and a callable"
                raise PackFault(f"{text}, got {name!r}: {type(reporter).__name__}", frame)
            yield RegisteredReporter(name=name, reporter=reporter, **origin_fields(origin))


def _providers(manager: pluggy.PluginManager, origin: PackOrigin) -> Iterator[ContractProvider]:
    for impl in manager.hook.shardlint_contracts.get_hookimpls():
        call = _with_arguments(impl.function, tuple(impl.argnames))
        yield ContractProvider(call=call, frame=_frame_of(impl.function), **origin_fields(origin))


def _with_arguments(function: Callable[..., object], names: tuple[str, ...]) -> Callable[[Any], object]:
    """An implementation may leave out arguments; give it those that it takes."""
    return lambda query: function(*({"query": query}[name] for name in names))


def _frame_of(function: object) -> str:
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    return code_frame(code if isinstance(code, CodeType) else None)
