"""`docs/configuration.md` says what is true: its table is the schema, its example is valid, its commands exist."""

import re
from pathlib import Path

import click

from shardlint.cli.main import cli
from shardlint.config import config_reference, load_settings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "configuration.md").read_text()


def test_the_table_is_the_schema():
    table = PAGE.partition("<!-- settings -->\n")[2].partition("<!-- end -->")[0]
    assert table == config_reference(), "put what shardlint.config.config_reference() returns between the markers"


def test_the_example_is_valid(tmp_path):
    example = PAGE.partition("```yaml\n")[2].partition("```")[0]
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "shardlint-base.yaml").write_text("lint: {ignore: [D501]}\n")
    (folder / "shardlint.yaml").write_text(example)
    settings = load_settings(folder)
    assert [item.rules for item in settings.suppressions] == [("coverage-incomplete",)]
    assert len(settings.files) == 2


def test_the_commands_exist():
    commands = re.findall(r"^\| `shardlint ([a-z ]+)", PAGE, re.MULTILINE)
    assert len(commands) == 6
    for words in map(str.split, commands):
        command = cli
        for word in words:
            assert isinstance(command, click.Group)
            command = command.get_command(click.Context(command), word)
            assert command is not None, words
