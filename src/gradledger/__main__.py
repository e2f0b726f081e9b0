"""`python -m gradledger` is the `gradledger` command."""

from gradledger.cli.main import entry

if __name__ == "__main__":
    entry()
