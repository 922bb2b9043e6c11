"""It says who it is in a dict."""

from shardlint import hookimpl


@hookimpl  # here
def shardlint_pack():
    return {"name": "wrong_info", "prefix": "WRO", "api": 1}
