"""Documents of the grid: the labels of its rows and columns."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.views.document import Document

if TYPE_CHECKING:
    from penstock.app.grids import Grid
    from penstock.config.settings import Customer


def grid_labels_document(grid: Grid, customers: Mapping[str, Customer]) -> Document:
    """The customer of each row, the days of the columns, and the meaning of each code."""
    from penstock.projections.status_codes import code_legend

    codes = grid.codes
    rows = []
    for customer_id in codes.customers:
        customer = customers.get(customer_id)
        rows.append(
            {
                "customer_id": customer_id,
                "name": customer.name if customer else None,
                "time_zone": customer.time_zone if customer else None,
            }
        )
    return Document(
        {
            "table": grid.asset,
            "layout": grid.layout,
            "rows": rows,
            "first": codes.first,
            "last": codes.first + timedelta(days=codes.days - 1),
            "days": codes.days,
            "codes": code_legend(),
        }
    )
