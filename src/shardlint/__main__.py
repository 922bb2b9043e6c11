"""`python -m shardlint`, for torchrun and for interpreters whose scripts are not on the path."""

import os
import sys


def _leave_folder() -> None:
    """
    Take the working folder off the module path, where `python -m` has put it first.

    Else a `yaml.py` or `torch.py` in a checkpoint folder that somebody stands in would be imported and run. A module
    that the user names is still found there (`shardlint.introspect.importing`).
    """
    try:
        here = os.getcwd()  # noqa: PTH109 - nothing more than sys may be imported before
    except OSError:
        return
    if sys.path and sys.path[0] in ("", here) and not sys.flags.safe_path:
        del sys.path[0]


if __name__ == "__main__":
    _leave_folder()

    from shardlint.cli.main import run

    run()
