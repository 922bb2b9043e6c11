"""Evaluate a contract's invariants on the live model: without gradients, and with every random state put back."""

from __future__ import annotations

import contextlib
import inspect
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..contract import LIFECYCLE_PHASES, Invariant, InvariantContext
from ..facts import EMPTY, ContractProblem, FrozenDict, InvariantOutcome
from ..introspect.importing import ImportProblem, import_object
from ..introspect.plain import encodable, plain

_SHOWN = 200


def evaluate_invariants(
    invariants: Iterable[Invariant], model: Any, *, phases: Sequence[str] = ()
) -> tuple[tuple[InvariantOutcome, ...], tuple[ContractProblem, ...]]:
    """
    Return the outcome of each invariant, and a problem for each checker that cannot be imported.

    Those of `phases` alone are evaluated, without any those of every phase but runtime; none when `model` is None.
    """
    outcomes: list[InvariantOutcome] = []
    problems: list[ContractProblem] = []
    for index, invariant in enumerate(invariants):
        outcome = _unsupported(invariant) or _left_out(invariant, model, phases)
        if outcome is None:
            try:
                checker = _checker(invariant)
            except ImportProblem as problem:
                where = f"invariants[{index}].checker"
                problems.append(ContractProblem(where=where, error=encodable(str(problem))))
                outcome = _outcome(invariant, "not-evaluated", error="its checker cannot be imported")
            else:
                outcome = _run(invariant, checker, model)
        outcomes.append(outcome)
    return tuple(outcomes), tuple(problems)


def _outcome(
    invariant: Invariant, status: str, facts: FrozenDict = EMPTY, error: str | None = None
) -> InvariantOutcome:
    return InvariantOutcome(name=invariant.name, phase=invariant.phase, status=status, facts=facts, error=error)


def _unsupported(invariant: Invariant) -> InvariantOutcome | None:
    return None if invariant.phase in LIFECYCLE_PHASES else _outcome(invariant, "unsupported-phase")


def _left_out(invariant: Invariant, model: Any, phases: Sequence[str]) -> InvariantOutcome | None:
    if model is None:
        return _outcome(invariant, "not-evaluated", error="there is no live model")
    if phases and invariant.phase not in phases:
        chosen = ", ".join(phases)
        return _outcome(invariant, "not-evaluated", error=f"invariants of {chosen} alone were asked for")
    if invariant.phase == "runtime" and not phases:
        return _outcome(invariant, "not-evaluated", error="runtime invariants are evaluated only when asked for")
    return None


def _checker(invariant: Invariant) -> Any:
    if callable(invariant.checker):
        return invariant.checker
    checker = import_object(invariant.checker)
    if not callable(checker):
        raise ImportProblem(f"{invariant.checker}: expected a callable, got {type(checker).__name__}")
    return checker


def _run(invariant: Invariant, checker: Any, model: Any) -> InvariantOutcome:
    import torch

    try:
        with torch.no_grad(), random_states_kept():
            result = _truth(_call(checker, model, InvariantContext(name=invariant.name, phase=invariant.phase)))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, and the private ones of torch, pytest, asyncio
        return _outcome(invariant, "raised", error=encodable(f"{type(error).__name__}: {error}"))
    if result is True or result is None:
        return _outcome(invariant, "passed")
    return _outcome(invariant, "failed", facts=_facts(result))


def _call(checker: Any, model: Any, context: InvariantContext) -> Any:
    """Call the checker with what it asks for: the model, and the context when it takes a second argument."""
    try:
        parameters = list(inspect.signature(checker).parameters.values())
    except (TypeError, ValueError):  # a builtin that tells nothing of itself
        return checker(model)
    named = next((parameter for parameter in parameters if parameter.name == "context"), None)
    if named is not None and named.kind is named.KEYWORD_ONLY:
        return checker(model, context=context)
    positional = [item for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    second = positional[1] if len(positional) > 1 else None
    wanted = second is not None and (second.default is second.empty or second.name == "context")
    return checker(model, context) if wanted else checker(model)


def _truth(result: Any) -> Any:
    """A bool out of numpy's and torch's own ones, so that `(a == b).all()` is what it looks like."""
    kind = type(result)
    single = getattr(result, "ndim", None) == 0 and str(getattr(result, "dtype", "")).removeprefix("torch.") == "bool"
    if single and kind.__module__.partition(".")[0] in ("torch", "numpy"):
        return bool(result)
    return result


def _facts(result: Any) -> FrozenDict:
    if isinstance(result, Mapping):
        frozen = plain(result)
        return frozen if isinstance(frozen, FrozenDict) else FrozenDict(result=frozen)
    shown = plain(result)
    if isinstance(shown, str) and shown.startswith("<"):
        shown = encodable(repr(result))[:_SHOWN]
    return FrozenDict(result=shown)


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Put the random states of Python, numpy and torch (every initialised device) back afterwards."""
    import torch

    numpy = sys.modules.get("numpy")
    cuda: Any = torch.cuda
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    devices = cuda.get_rng_state_all() if cuda.is_initialized() else None
    torch_state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        if devices is not None:
            cuda.set_rng_state_all(devices)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        random.setstate(python_state)
