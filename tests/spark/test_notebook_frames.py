"""`%%penstock_sql --as spark` returns a DataFrame of the session that the notebook has."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from support.ipython import ipython_shell, run
from support.notebooks import make_workspace


def test_a_result_is_a_frame_of_the_active_session(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make_workspace(tmp_path / "workspace").workspace.close()
    monkeypatch.chdir(tmp_path / "workspace")
    shell = ipython_shell(tmp_path / "ipython")
    run(shell, "%%penstock_sql --as spark daily\nSELECT logical_date, clicks FROM demo.campaign_daily")
    daily = shell.user_ns["daily"]
    assert isinstance(daily, DataFrame)
    assert daily.sparkSession is spark
    totals = {row[0]: row[1] for row in daily.groupBy("logical_date").sum("clicks").collect()}
    assert totals == {date(2024, 6, 9): 12, date(2024, 6, 10): 6}
    run(shell, "%%penstock_sql --as spark nothing\nSELECT clicks FROM demo.campaign_daily WHERE false")
    assert shell.user_ns["nothing"].count() == 0
