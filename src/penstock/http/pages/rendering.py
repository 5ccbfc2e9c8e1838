"""Renders templates: the frame that all pages share, and the filters for values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo

from penstock.http.calls import Reply
from penstock.http.pages.static_files import static_url
from penstock.http.routes import PAGE

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from penstock.http.calls import Call, Identity

# The entries of the navigation: section, path, text.
SECTIONS = (
    ("overview", "/", "Overview"),
    ("grid", "/grid", "Grid"),
    ("partitions", "/partitions", "Partitions"),
    ("runs", "/runs", "Runs"),
    ("backfills", "/backfills", "Backfills"),
    ("tables", "/tables", "Tables"),
    ("sources", "/sources", "Sources"),
    ("late", "/late", "Late"),
    ("lineage", "/lineage", "Lineage"),
    ("audit", "/audit", "Audit"),
)

# Text and symbol of each display status: no status is shown by its colour alone.
STATUSES: Mapping[str, tuple[str, str]] = {
    "materialized": ("materialized", "●"),
    "materialized_but_last_attempt_failed": ("materialized, last attempt failed", "◐"),
    "stale": ("stale", "◆"),
    "never_materialized": ("never materialized", "○"),
    "unavailable": ("unavailable", "✕"),
}


@dataclass(frozen=True, slots=True)
class Page:
    """The frame of a page: its title, its entry in the navigation, and the command that shows the same."""

    title: str
    section: str
    command: str | None = None


def render(call: Call, template: str, page: Page, *, status: int = 200, **values: Any) -> Reply:
    """The page of a template for the caller. Every value is escaped."""
    return Reply(
        content=_content(template, page, call.identity, call.read_only, values), media_type=PAGE, status=status
    )


def render_error(identity: Identity | None, status: int, title: str, detail: str, request_id: str) -> bytes:
    """The page of an error. It needs neither the workspace nor its database."""
    values = {"status": status, "detail": detail, "request_id": request_id}
    return _content("error.html", Page(title, ""), identity, True, values)


def _content(template: str, page: Page, identity: Identity | None, read_only: bool, values: Mapping[str, Any]) -> bytes:
    from penstock import __version__

    if identity is not None and not identity.name:  # the caller of a public page
        identity = None
    session = identity.session if identity else None
    frame = {
        "page": page,
        "sections": SECTIONS if identity else (),
        "identity": identity,
        "csrf": session.csrf if session else "",
        "has_session": session is not None,
        "can_act": identity is not None and not read_only and identity.role.value != "viewer",
        "csrf_field": lambda: _csrf_field(session.csrf if session else ""),
        "version": __version__,
    }
    return environment().get_template(template).render(**frame, **values).encode("utf-8", "backslashreplace")


def _csrf_field(value: str) -> Markup:
    """The hidden field of a form by which the server knows that one of its own pages sent it."""
    from markupsafe import Markup

    return Markup('<input type="hidden" name="csrf_token" value="{}">').format(value)


@cache
def environment() -> Environment:
    """The templates. Every value is escaped; a missing value is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("penstock.http.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "utc": utc,
        "local": local,
        "number": number,
        "status": status_badge,
        "path": partition_path,
        "query": query_text,
    }
    made.globals |= {"static_url": static_url, "STATUSES": STATUSES}
    return made


def utc(value: datetime | str | None) -> Markup | str:
    """A time in UTC. Scripts add how long ago it was."""
    from markupsafe import Markup

    if value is None:
        return "–"
    moment = _moment(value)
    return Markup('<time datetime="{}">{}</time>').format(
        moment.strftime("%Y-%m-%dT%H:%M:%SZ"), moment.strftime("%Y-%m-%d %H:%M:%S")
    )


def local(value: datetime | str | None, zone: str | None) -> Markup | str:
    """A time in UTC, and in the time zone of the customer."""
    from markupsafe import Markup

    if value is None or not zone or zone == "UTC":
        return utc(value)
    there = _moment(value).astimezone(ZoneInfo(zone))
    return Markup('{} <span class="zone">{} {}</span>').format(utc(value), there.strftime("%Y-%m-%d %H:%M"), zone)


def _moment(value: datetime | str) -> datetime:
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)


def number(value: float | None) -> str:
    """A number with separators; a dash if there is none."""
    return "–" if value is None else f"{value:,}"


def status_badge(value: str) -> Markup:
    """A display status as text with its symbol and colour."""
    from markupsafe import Markup

    text, symbol = STATUSES[str(value)]
    return Markup('<span class="status status-{}"><span aria-hidden="true">{}</span> {}</span>').format(
        str(value), symbol, text
    )


def partition_path(key: object) -> str:
    """The path of the page of a partition."""
    return f"/partitions/{quote(str(key))}"


def query_text(values: Mapping[str, Any]) -> str:
    """Values as the query of a URL, without those that are empty."""
    return urlencode([(name, one) for name, value in values.items() for one in _each(value)])


def _each(value: Any) -> list[str]:
    if isinstance(value, (list, tuple)):
        return [str(one) for one in value]
    if value is True:
        return ["true"]
    return [] if value in (None, "", False) else [str(value)]
