"""`python -m penstock`."""

from __future__ import annotations

from penstock.cli.entry_point import main

main()
