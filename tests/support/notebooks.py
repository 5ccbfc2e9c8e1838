"""HTML of values, parsed as a notebook does it, and the workspace of the example notebook."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import yaml

from support.harness import FIELDS, Harness
from support.workspaces import CAMPAIGNS, key, write_workspace

_TAGS = {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "span"}
_LARGEST = 500_000  # characters


class Fragment(HTMLParser):
    """The text, the titles and the styles of a fragment. Fails for tags and attributes that could do anything."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        assert len(html) < _LARGEST
        self.text = ""
        self.titles: list[str] = []
        self.styles: list[str] = []
        self.rows = 0
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _TAGS
        assert {name for name, _ in attrs} <= {"style", "title"}
        self._open.append(tag)
        self.rows += tag == "tr"
        self.titles += [value or "" for name, value in attrs if name == "title"]
        self.styles += [value or "" for name, value in attrs if name == "style"]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        self.text += "\n" if tag in ("p", "tr", "li") else "\t" if tag in ("td", "th") else ""

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def fragment(value: object) -> Fragment:
    """What a notebook shows for a value."""
    return Fragment(value._repr_html_())  # type: ignore[attr-defined]


def make_workspace(folder: Path, *, customers: int = 3) -> Harness:
    """A workspace of two days; the first customer is published on both, the second one on the first."""
    query = {**CAMPAIGNS, "fields": FIELDS, "checks": []}
    write_workspace(folder, customers=customers, queries={"campaign_daily": query})
    file = folder / "penstock.yaml"
    body = yaml.safe_load(file.read_text())
    for customer in body["customers"]:
        customer["active_to"] = "2024-06-10"
    file.write_text(yaml.safe_dump(body, sort_keys=False))
    made = Harness(folder)
    made.deliver({key(1, "2024-06-09"): 1, key(1, "2024-06-10"): 2, key(2, "2024-06-09"): 3})
    made.publish()
    return made
