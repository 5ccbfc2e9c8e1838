"""Mutation testing: changes the code in small ways and reports the changes that no fast test detects.

python scripts/mutate --sample 200 --seed 7        a sample, spread over the packages
python scripts/mutate --all --package state        every mutant of one package
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mutants import Mutant
    from running import Job

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
TIERS = ("tests/unit/test_*.py", "tests/contract/test_*.py", "tests/laws/test_*.py", "tests/crash/test_publish_gaps.py")
_PROTOCOL = ("batch", "catalog", "compare", "consistency", "delta", "delta_log", "due", "heads", "identity", "lease",
             "mismatch", "pointers", "publish", "readiness", "rebuild", "served", "snapshots", "vacuum", "versions",
             "withdrawn")  # fmt: skip


def package_files() -> dict[str, list[Path]]:
    """The packages that are examined; of the warehouse the protocol."""
    home = SRC / "penstock"
    files = {name: sorted((home / name).glob("*.py")) for name in ("control", "state", "projections")}
    return {**files, "warehouse": [home / "warehouse" / f"{name}.py" for name in _PROTOCOL]}


def record(target: Path, share: int, shares: int) -> None:
    """Run a share of the fast tests once and note which lines each of them executes."""
    from covering import ELSEWHERE, Recorder
    from running import pytest_in

    files = [path for tier in TIERS for path in sorted(ROOT.glob(tier)) if path.name not in ELSEWHERE]
    recorder = Recorder(SRC, list(package_files()))
    code = pytest_in(ROOT, SRC, [str(path) for path in files[share::shares]], [recorder])
    found = recorder.recorded()
    if found["failed"]:
        print(f"left out, because they fail without a mutant: {', '.join(found['failed'])}", file=sys.stderr)
    if not found["seconds"]:
        sys.exit(code or 1)
    target.write_text(json.dumps(found))


def main() -> None:
    options = _options()
    home = ROOT / ".mutation"
    if options.record is not None:
        record(home / f"coverage-{options.record}.json", options.record, options.jobs)
        return
    recorded = [home / f"coverage-{share}.json" for share in range(options.jobs)]
    if not (options.reuse and all(path.exists() for path in recorded)):
        _record_all(home, options.jobs)
    sys.exit(_examine(options, recorded))


def _record_all(home: Path, shares: int) -> None:
    print("recording which tests execute which lines", file=sys.stderr)
    home.mkdir(exist_ok=True)
    command = [sys.executable, str(Path(__file__).parent), "--jobs", str(shares), "--record"]
    started = [subprocess.Popen([*command, str(share)], stdout=subprocess.DEVNULL) for share in range(shares)]
    if any(process.wait() for process in started):
        sys.exit("the tests could not be recorded")


def _examine(options: argparse.Namespace, recorded: Sequence[Path]) -> int:
    from covering import Coverage
    from mutants import mutants
    from running import Job, copies, run, warm_up

    coverage = Coverage(recorded, SRC)
    chosen: list[Mutant] = []
    totals = {}
    packages = [name for name in package_files() if options.package in (None, name)]
    for name in packages:
        files = [path for path in package_files()[name] if options.match in str(path)]
        found = [mutant for path in files for mutant in mutants(name, path, SRC)]
        totals[name] = len(found)
        if options.survivors:
            alive = set(json.loads(_survivors().read_text()))
            chosen += [mutant for mutant in found if _name(mutant) in alive]
            continue
        share = len(found) if options.all else min(len(found), -(-options.sample // len(packages)))
        chosen += random.Random(options.seed).sample(found, share)
    random.Random(options.seed).shuffle(chosen)
    jobs, untested, results = [], [], {}
    for number, mutant in enumerate(chosen):
        tests = coverage.tests(mutant.path, mutant.line, options.budget)
        code = mutant.code((SRC / mutant.path).read_text())
        if code is None:
            continue
        if not tests:
            untested.append(number)
            continue
        patience = 60 + 4 * coverage.seconds(tests)
        jobs.append(Job(number + 1, mutant.path, code, tests, patience))
    warm_up()
    results = dict.fromkeys(untested, "no test")
    with copies(SRC, options.jobs) as slots:
        _refuse_broken_surroundings(jobs, slots)
        for done, ended in enumerate(run(jobs, ROOT, slots), 1):
            if ended.outcome == "broken":
                sys.exit(f"pytest failed to start:\n{ended.output}")
            results[ended.number - 1] = ended.outcome
            mutant = chosen[ended.number - 1]
            note = f"{done}/{len(jobs)} {ended.outcome:8} {ended.seconds:5.1f} s {mutant.path}:{mutant.line}"
            print(note, mutant.operator, file=sys.stderr, flush=True)
    return _report(options, chosen, results, totals)


def _refuse_broken_surroundings(jobs: Sequence[Job], slots: Sequence[Path]) -> None:
    """Without a change the tests of some mutants must pass, or every mutant would count as killed."""
    from running import run

    unchanged = [replace(job, text=(SRC / job.path).read_text()) for job in jobs[:4]]
    for ended in run(unchanged, ROOT, slots):
        if ended.outcome != "survived":
            sys.exit(f"the tests fail without a mutant ({ended.outcome}):\n{ended.output}")


def _report(
    options: argparse.Namespace, chosen: Sequence[Mutant], results: dict[int, str], totals: dict[str, int]
) -> int:
    rows = {name: Counter(results[n] for n in results if chosen[n].package == name) for name in totals}
    print("package        mutants  examined  killed  survived  no test   score")
    below = []
    for name, found in rows.items():
        killed, examined = found["killed"] + found["timeout"], sum(found.values())
        score = 100 * killed / examined if examined else 100.0
        counts = f"{examined:9,} {killed:7,} {found['survived']:9,} {found['no test']:8,}"
        print(f"{name:12} {totals[name]:9,} {counts} {score:6.1f} %")
        below += [name] if score < options.minimum else []
    alive = [n for n in sorted(results) if results[n] in ("survived", "no test")]
    _survivors().write_text(json.dumps([_name(chosen[n]) for n in alive]))
    for number in sorted(alive, key=lambda n: (chosen[n].path, chosen[n].line)):
        mutant = chosen[number]
        print(f"\n{mutant.path}:{mutant.line} {mutant.operator} {mutant.occurrence} ({results[number]})")
        print("\n".join(mutant.diff((SRC / mutant.path).read_text())[:8]))
    return int(bool(below))


def _survivors() -> Path:
    return ROOT / ".mutation" / "survivors.json"


def _name(mutant: Mutant) -> str:
    return f"{mutant.path}:{mutant.line}:{mutant.operator}:{mutant.occurrence}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=200, help="the number of mutants, equal for all packages")
    parser.add_argument("--all", action="store_true", help="every mutant; takes hours")
    parser.add_argument("--seed", type=int, default=7, help="of the sample")
    parser.add_argument("--package", choices=list(package_files()), help="only this one")
    parser.add_argument("--match", default="", help="only files with this in their path")
    parser.add_argument("--jobs", type=int, default=2, help="the number of concurrent processes")
    parser.add_argument("--budget", type=float, default=30, help="seconds of tests for one mutant, the quickest first")
    parser.add_argument("--minimum", type=float, default=0, help="exit code 1 when a package has a lower score")
    parser.add_argument("--reuse", action="store_true", help="use the recorded coverage of the last call")
    parser.add_argument("--survivors", action="store_true", help="only the mutants that survived the last time")
    parser.add_argument("--record", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
