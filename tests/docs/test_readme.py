"""The README shows what is true: its transcript is the demo's output, its links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]+)")


def transcript() -> str:
    text = (ROOT / "README.md").read_text()
    block = text.partition("<!-- transcript -->")[2].partition("<!-- end -->")[0]
    return block.strip().removeprefix("```\n").removesuffix("```").strip()


def test_the_transcript_is_what_the_demo_prints():
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "shardlint", "demo"],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert transcript().startswith("== 2. The same with three faults")
    assert transcript() in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page):
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert missing == []
