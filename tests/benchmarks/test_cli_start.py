"""How fast the command line starts, as a ratio to what it cannot avoid."""

import os
import resource
import subprocess
import sys

import pytest

pytestmark = pytest.mark.benchmark

RUNS = 7

# Runs the command, then names the top-level packages that it imported and that are neither Python's nor shardlint's.
LIST_IMPORTS = """
import contextlib, io, sys
from shardlint.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    main(sys.argv[1:])
own = {"shardlint", "shardlint_rules", "__main__"}
modules = [name for name in sys.modules if name.partition(".")[0] not in sys.stdlib_module_names]
print(*[name for name in modules if name.partition(".")[0] not in own and not name.startswith("_")])
"""

IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def third_party(arguments, environment):
    done = subprocess.run(
        [sys.executable, "-c", LIST_IMPORTS, *arguments], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.split()


def seconds(command, environment):
    """Processor seconds of one run of the command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def best(commands, environment):
    """The best of several runs of each command, run in turns: other work on the machine slows all alike."""
    times = [[seconds(command, environment) for command in commands] for _ in range(RUNS)]
    return [min(column) for column in zip(*times, strict=True)]


# `rules` imports every rule and builds the classes of all facts, settings and packs: that is work, not start.
@pytest.mark.parametrize(("arguments", "limit"), [(("--version",), 1.5), (("rules",), 7.0)])
def test_start_against_third_party_imports(tmp_path, arguments, limit):
    """Bytecode is cached, as it is for an installed package; both are measured in one run."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    names = third_party(arguments, environment)
    assert "click" in names
    commands = [[sys.executable, "-m", "shardlint", *arguments], [sys.executable, "-c", IMPORT_ALL, *names]]
    ours, theirs = best(commands, environment)
    assert ours / theirs < limit
