"""`penstock source new`: the package that it creates passes its own tests, and a workspace uses its class."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.cli import penstock


def test_a_new_source_package_passes_its_tests_and_fails_when_it_is_broken(tmp_path: Path) -> None:
    folder = tmp_path / "penstock-weather_station"
    made = penstock("source", "new", "weather_station", "--folder", str(folder), "--json", workspace=None)
    assert made.returncode == 0, made.stderr
    assert (folder / "src/penstock_weather_station/__init__.py").exists()

    def tested() -> subprocess.CompletedProcess[str]:
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        return subprocess.run(command, cwd=folder, env=inherited, capture_output=True, text=True, check=False)

    done = tested()
    assert done.returncode == 0, done.stdout
    assert "17 passed" in done.stdout
    module = folder / "src/penstock_weather_station/__init__.py"
    module.write_text(module.read_text().replace("self._context.budget.spend()", "pass"))
    assert "no request was counted" in tested().stdout
    again = penstock("source", "new", "weather_station", "--folder", str(folder), workspace=None)
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
    wrong = penstock("source", "new", "Weather-Station", workspace=None)
    assert (wrong.returncode, "cannot be the kind of a source" in wrong.stderr) == (2, True)
