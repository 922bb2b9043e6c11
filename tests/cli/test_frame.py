"""The command line's frame: help, version, flags, what goes wrong."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from shardlint import __version__
from shardlint.cli.main import COMMANDS, cli, main

PACKS = {"--config", "--isolated", "--require-pack", "--disable-pack"}
SELECTION = {"--select", "--extend-select", "--ignore", "--severity"}
TARGET = {"--checkpoint", "--contract", "--arg"}
HELP = {"-h", "--help"}

# Every flag there is. A flag is a promise: add one here on purpose, and take none away.
FLAGS = {
    "shardlint": {"-V", "--version", "-v", "--verbose"} | HELP,
    "lint": {"--heavy", "--fail-level", "--exit-zero", "--as-of", "--no-suppressions", "--show-suppressed"}
    | {"--output-format", "--color", "-q", "--quiet", "-v", "--verbose", "--timing", "--collapse", "--no-collapse"}
    | {"--rank-timeout"}
    | {"--reference", "--allow-cast", "--sample", "--max-memory", "--replicas", "--weight-report", "--external"}
    | PACKS
    | SELECTION
    | TARGET
    | HELP,
    "snapshot": {"-o", "--output", "--external"} | PACKS | TARGET | HELP,
    "ownership": {"-o", "--output", "--output-format", "--collapse", "--no-collapse", "--match", "--rank"}
    | PACKS
    | TARGET
    | HELP,
    "rule": {"--all", "--output-format", "--color"} | PACKS | HELP,
    "rules": {"--enabled", "--output-format", "--color"} | PACKS | SELECTION | HELP,
    "packs": {"--output-format", "--color"} | PACKS | HELP,
    "config": HELP,
    "config show": {"--output-format", "--config", "--isolated"} | HELP,
    "config validate": PACKS | HELP,
    "config schema": HELP,
    "config init": {"-o", "--output"} | HELP,
    "suppressions": {"--checkpoint", "--output-format", "--as-of", "--color"} | PACKS | HELP,
    "schema": HELP,
    "demo": {"--color", "-v", "--verbose"} | HELP,
    "completion": HELP,
}


def commands(command=cli, name="shardlint", prefix="", parent=None):
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    yield name, command, context
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            yield from commands(command.get_command(context, inner), f"{prefix}{inner}", f"{prefix}{inner} ", context)


def flags(command, context):
    options = [item for item in command.get_params(context) if isinstance(item, click.Option)]
    return {flag for item in options for flag in (*item.opts, *item.secondary_opts)}


def test_the_set_of_flags_is_frozen():
    assert {name: flags(command, context) for name, command, context in commands()} == FLAGS


def test_every_option_is_explained():
    for name, command, context in commands():
        for item in command.get_params(context):
            assert not isinstance(item, click.Option) or item.help, f"{name}: {item.opts} has no help"


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_the_terminal(run, monkeypatch, name, width):
    monkeypatch.setenv("COLUMNS", str(width))
    shown = run(name, "--help")
    assert shown.status == 0
    prose = shown.out.partition("Examples:")[0]
    assert all(len(line) <= width for line in prose.splitlines())
    assert not any(line.endswith("...") for line in prose.splitlines()[1:]), "a summary is cut short"


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "config"])
def test_help_has_examples_of_the_command_itself(run, name):
    examples = run(name, "--help").out.partition("Examples:")[2]
    assert f"shardlint {name}" in examples


def test_the_examples_in_the_help_are_real_usage():
    for name, command, _ in commands():
        for line, _ in getattr(command, "examples", ()):
            for part in line.removeprefix('eval "$(').removesuffix(')"').split(" | "):
                words = part.split()
                words = words[words.index("shardlint") :]  # after torchrun and its options, when there are any
                used_by = next(key for key in (" ".join(words[1:3]), words[1]) if key in FLAGS)
                used = {word for word in words if word.startswith("-") and word != "-"}
                assert used <= FLAGS[used_by], f"{name}: {line}"


def test_every_command_says_what_it_does_in_the_overview(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("--help")
    assert shown.status == 0
    assert not any(line.endswith("...") for line in shown.out.splitlines()[1:]), "a summary is cut short"
    for name in COMMANDS:
        summary = import_module(f"shardlint.cli.commands.{name}").command.get_short_help_str(300)
        assert summary
        assert f"  {name} " in shown.out


def test_version(run):
    assert run("--version").out == f"shardlint {__version__}\n"


def test_no_command_shows_the_overview(run):
    shown = run()
    assert "Commands:" in shown.out + shown.err
    assert shown.status == 2


def test_an_unknown_command_names_the_nearest(run):
    shown = run("lnit")
    assert shown.status == 2
    assert "no such command 'lnit' (did you mean 'lint'?)" in shown.err


@pytest.mark.parametrize(
    "arguments", [("rules", "--nonsense"), ("lint",), ("lint", "a", "b"), ("rules", "--color", "x")]
)
def test_wrong_usage_is_exit_status_2(run, arguments):
    shown = run(*arguments)
    assert (shown.status, shown.out) == (2, "")
    assert shown.err.startswith("Usage: shardlint ")


def test_an_unexpected_error_is_one_line_and_how_to_see_more(run, monkeypatch):
    module = import_module("shardlint.cli.commands.schema")
    monkeypatch.setattr(module, "_schema", lambda what: 1 // 0)
    shown = run("schema", "report")
    assert shown.status == 2
    assert shown.err.splitlines() == [
        "shardlint: internal error: ZeroDivisionError: integer division or modulo by zero",
        "Set SHARDLINT_DEBUG=1 to see the traceback, and please report it.",
    ]
    monkeypatch.setenv("SHARDLINT_DEBUG", "1")
    assert "Traceback (most recent call last)" in run("schema", "report").err


def test_interruption_is_130(run, monkeypatch):
    def interrupt(what):
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("shardlint.cli.commands.schema"), "_schema", interrupt)
    shown = run("schema", "report")
    assert (shown.status, shown.out, shown.err) == (130, "", "\ninterrupted\n")


def test_a_broken_pipe_is_quiet():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "shardlint", "rule", "--all"],
        check=False,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(run, shell):
    shown = run("completion", shell)
    assert shown.status == 0
    assert f"_SHARDLINT_COMPLETE={shell}_complete" in shown.out


def test_completion_completes_commands_and_options():
    def complete(words):
        environment = os.environ | {"_SHARDLINT_COMPLETE": "bash_complete", "COMP_WORDS": words}
        environment["COMP_CWORD"] = str(len(words.split(" ")) - 1)
        done = subprocess.run(
            [sys.executable, "-m", "shardlint"], check=False, env=environment, capture_output=True, text=True
        )
        return {line.partition(",")[2] for line in done.stdout.splitlines()}

    assert complete("shardlint sn") == {"snapshot"}
    assert "--show-suppressed" in complete("shardlint lint --s")
    assert complete("shardlint rule meta-t") == {"meta-tensor-left"}
    assert complete("shardlint lint --select D101,D40") >= {"D101,D401", "D101,D406"}


def test_output_that_the_terminal_cannot_show_is_escaped():
    code = "import sys; from shardlint.cli.main import main; main(['--version']); print('\\u20ac')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=True
    )
    assert done.stdout.endswith(b"\\u20ac\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_line():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "shardlint", "rule", "--all"], check=False, stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 2
    assert done.stderr == b"Error: No space left on device\n"


def test_main_returns_and_does_not_exit():
    assert main(["--version"]) == 0


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_do_no_harm(closed, faulty):
    """What nobody reads is not written; the exit status still tells."""
    command = f'"{sys.executable}" -m shardlint lint "{faulty}" {closed}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "internal error" not in done.stderr
    assert (done.stdout != "") == (closed == "2>&-")


def test_closed_standard_input_is_told():
    command = f'"{sys.executable}" -m shardlint lint - <&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "Error: standard input is closed; expected facts as `shardlint snapshot` writes them\n"


def test_the_version_with_what_it_limits(run, monkeypatch):
    monkeypatch.setattr("shardlint.versions.installed_versions", lambda: {"transformers": "4.44.0", "numpy": "2.0"})
    for arguments in (("--version", "-v"), ("-v", "--version")):
        lines = run(*arguments).out.splitlines()
        assert lines[0] == f"shardlint {__version__}"
        assert "transformers 4.44.0 (tried: 4.48.3 to 5.24.0)" in lines
        assert "limited: transformers 4.44.0 is outside of what was tried, 4.48.3 to 5.24.0" in lines
        assert any(line.startswith("limited: transformers below 5.0: ") for line in lines)
    assert "goes with --version" in run("-v", "rules").err
