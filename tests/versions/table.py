"""What a release must show, and the table of what it showed."""

from __future__ import annotations

RELEASES = (
    "4.48.3",
    "4.51.3",
    "4.57.6",
    "5.0.0",
    "5.2.0",
    "5.5.4",
    "5.8.1",
    "5.10.4",
    "5.12.1",
    "5.16.1",
    "5.20.2",
    "5.22.2",
    "5.24.0",
)
CI_RELEASES = ("4.48.3", "5.0.0", "5.24.0")
"""The oldest, one in the middle (the first with conversions), and the newest."""
FAULTS = {
    "key dropped": {"D501"},
    "extra key": {"D501"},
    "transposed": {"D504"},
    "two shards": {"D507"},
    "index wrong": {"D506"},
    "tie broken": {"D406"},
}
_SOUND = ("folder", "heavy")


def problems(result: dict) -> list[str]:
    """Return a line for everything that a release did not show as it must."""
    version, said = result["transformers"], []
    for case, runs in result["cases"].items():
        if "verdict" in runs:
            said.append(f"{version}, {case}: {runs['messages'][0][-500:]}")
            continue
        for name, run in runs.items():
            if not _right(name, run):
                details = " ".join((*run["missing"], *run["messages"]))[:400]
                said.append(f"{version}, {case}, {name}: {run['verdict']} {run['errors']} {details}")
    return said


def _right(name: str, run: dict) -> bool:
    if name in _SOUND:
        return run["verdict"] == "PASS" and run["clean"] > 0 and not run["missing"]
    wanted = {"V002"} if name == "changed" else FAULTS[name]
    return run["verdict"] == "FAIL" and wanted <= set(run["errors"])


def row(result: dict) -> str:
    """Return the row of a release."""
    runs = [case for case in result["cases"].values() if "verdict" not in case]
    cells = [result["transformers"], *(_verdicts(runs, name) for name in (*_SOUND, "changed"))]
    planted = [(name, run) for case in runs for name, run in case.items() if name in FAULTS]
    found = sum(_right(name, run) for name, run in planted)
    cells += [f"{found} of {len(planted)}", f"{len(runs)} of {len(result['cases'])}"]
    return f"| {' | '.join(cells)} |"


def _verdicts(runs: list[dict], name: str) -> str:
    said = {f"{run[name]['verdict']} {' '.join(run[name]['errors'])}".strip() for run in runs}
    return ", ".join(sorted(said))


def table(results: list[dict]) -> str:
    """Return the table of several releases."""
    titles = (
        "Transformers",
        "folder alone",
        "`--heavy`, sound",
        "`--heavy`, one element changed",
        "faults found",
        "cases run",
    )
    head = [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    return "\n".join([*head, *(row(result) for result in results)])
