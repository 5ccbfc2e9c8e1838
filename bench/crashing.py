"""A publisher of 10,000 partitions killed in every gap while readers run: each read must be complete."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.options import positive
from bench.report import circumstances


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    say = Console(stderr=True).print
    sys.path.append(str(Path(__file__).parents[1] / "tests"))  # the tests do the same with fewer partitions
    from support.harness import Harness
    from support.loader_processes import Watch
    from support.publisher_kills import Walk, expected_mending

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        walk = Walk(Harness(Path(name)), options.partitions)
        walk.prepare()
        watch, started = Watch(Path(name), options.readers, options.partitions), time.monotonic()
        wrong = []
        try:
            for one in walk.through(watch):
                say(f"{one.gap}: readers saw publication {one.seen}; the batch was {one.mended}")
                if one.mended != expected_mending(one.gap):
                    wrong.append(one.gap)
            watch.end()
        finally:
            watch.kill()
        walk.close()
        facts = {"partitions": options.partitions, "reads": sum(watch.reads()), "caught": watch.caught()}
        seconds = round(time.monotonic() - started)
        print(json.dumps({**facts, "mended_otherwise": wrong, "seconds": seconds, **circumstances()}, default=str))
        if wrong or watch.caught():
            raise SystemExit("readers saw what they must not, or a batch was not mended as it should be")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.crashing", description=__doc__)
    parser.add_argument("--partitions", type=positive, default=10_000, metavar="N")
    parser.add_argument("--readers", type=positive, default=2, metavar="N")
    return parser


if __name__ == "__main__":
    main()
