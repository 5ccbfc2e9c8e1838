"""The entry point of the program: answers signals and reserves standard output before it imports the commands."""

from __future__ import annotations

import sys

from penstock import interrupts
from penstock.cli.stdout import reserve_stdout


def main() -> None:
    interrupts.install()
    try:
        reserve_stdout()
        from penstock.cli.main import main as command

        command()
    except KeyboardInterrupt:  # while modules were imported; a command answers by itself
        interrupts.ignore()
        interrupts.say("interrupted")
        sys.exit(interrupts.EXIT_CODE)
    finally:
        interrupts.ignore()
