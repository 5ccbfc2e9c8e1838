"""The entry point of the `penstock` program. It answers SIGINT and SIGTERM before it imports the commands."""

from __future__ import annotations

import sys

from penstock import interrupts


def main() -> None:
    interrupts.install()
    try:
        from penstock.cli.main import main as command

        command()
    except KeyboardInterrupt:  # while modules were imported; a command answers by itself
        interrupts.ignore()
        interrupts.say("interrupted")
        sys.exit(interrupts.EXIT_CODE)
    finally:
        interrupts.ignore()
