"""
Try releases of Transformers, each in a fresh environment: `python -m tests.versions [VERSION ...] [--write]`.

The environment holds the release with the tokenizers and the hub client that it asks for; torch and all else come from
the environment that runs this. The table is printed, with `--write` it goes into docs/versions.md. Exit status 1 when
a release does not show what it must.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from .table import CI_RELEASES, RELEASES, problems, row, table

ROOT = Path(__file__).resolve().parents[2]
_MARKS = ("<!-- matrix -->", "<!-- end -->")


def environment(version: str, folder: Path) -> Path:
    """Make the environment of a release and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    _install(python, "--no-deps", f"transformers=={version}")
    code = (
        "from importlib.metadata import requires\n"
        "for line in requires('transformers'):\n"
        "    if line.startswith(('tokenizers', 'huggingface')) and 'extra' not in line: print(line)"
    )
    wanted = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()
    _install(python, *(line.replace(" ", "").replace("(", "").replace(")", "") for line in wanted))
    base, own = sysconfig.get_paths()["purelib"], next((folder / "lib").glob("python*/site-packages"))
    (own / "zz_base.pth").write_text(f"{base}\n")  # after its own packages, so that these win
    return python


def _install(python: Path, *what: str) -> None:
    command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *what]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"pip install {' '.join(what)} failed:\n{done.stderr[-2000:]}")


def tried(version: str, names: list[str]) -> dict:
    """Run the smoke set with one release and return what it found."""
    with tempfile.TemporaryDirectory() as work:
        python = environment(version, Path(work) / "venv")
        paths = os.pathsep.join(str(ROOT / part) for part in ("src", "rules"))
        settings = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        command = [python, Path(__file__).with_name("smoke.py"), *names]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=settings, cwd=work)
    if done.returncode:
        raise SystemExit(f"Transformers {version}: the smoke set does not run:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def main() -> int:
    """Try what was asked for, print the table, return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="releases to try; all of the table without any")
    parser.add_argument("--models", default="", help="names of models, with commas; all without")
    parser.add_argument("--write", action="store_true", help="write the table into docs/versions.md")
    parser.add_argument("--ci", action="store_true", help="the oldest, one middle and the newest release")
    options = parser.parse_args()
    results = []
    for version in options.versions or (CI_RELEASES if options.ci else RELEASES):
        results.append(tried(version, [name for name in options.models.split(",") if name]))
        print(row(results[-1]), flush=True)
    if options.write:
        page = ROOT / "docs" / "versions.md"
        before, rest = page.read_text().split(_MARKS[0])
        after = rest.split(_MARKS[1])[1]
        page.write_text(f"{before}{_MARKS[0]}\n{table(results)}\n{_MARKS[1]}{after}")
    wrong = [line for result in results for line in problems(result)]
    print("\n".join(wrong) or "every release shows what it must")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
