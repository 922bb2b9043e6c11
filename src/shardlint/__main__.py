"""`python -m shardlint`, for torchrun and for interpreters whose scripts are not on the path."""

from shardlint.cli.main import run

if __name__ == "__main__":
    run()
