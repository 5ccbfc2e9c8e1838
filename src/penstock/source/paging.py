"""Paging of web services: by page number, by offset, by a cursor or the last record, or by a link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

import pydantic

from penstock.config.values import KeyDoc
from penstock.source.options import Options

_NO_MORE = (None, "", False, "false")


@dataclass(frozen=True, slots=True)
class Step:
    """The next request: additional parameters, or another address that replaces all."""

    params: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for two steps that send the same request."""
        return (self.url, *sorted(self.params.items()))


@dataclass(frozen=True, slots=True)
class Page:
    """The facts of a response that determine the next request."""

    records: int
    also: Any  # the value at the path `also` of the kind of paging
    link: str | None
    last: Any = None  # the value of the last record


class _Sent(Options):
    """A kind that sends a parameter: in the address, or in the body of a POST."""

    is_number: ClassVar[bool] = False
    place: Literal["params", "body"] | None = None

    documentation: ClassVar = {
        "place": KeyDoc(
            "Where the parameters are sent. Default: in the `body` or `form` if the request has one, else in the"
            " address. In a `body`, a dotted name is a path.",
            "body",
        ),
    }


class _Sized(_Sent):
    is_number = True
    size_param: str | None = None
    size: int | None = pydantic.Field(default=None, ge=1)

    documentation: ClassVar = {
        **_Sent.documentation,
        "size_param": KeyDoc("The parameter with the number of records to return. Needs `size`.", "limit"),
        "size": KeyDoc("The number of records of a full page; a page with fewer is the last one.", "100"),
    }

    @pydantic.model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if self.size_param is not None and self.size is None:
            raise ValueError("size_param needs size: the number of records per request")
        return self

    def sized(self, params: Mapping[str, str]) -> Step:
        return Step({**params, **({self.size_param: str(self.size)} if self.size_param else {})})

    def is_last(self, page: Page) -> bool:
        return page.records < (self.size or 1)


class PageNumbers(_Sized):
    """Numbered pages; the first one that is empty, or not full, is the last."""

    kind: Literal["page"]
    param: str
    start: int = 1

    documentation: ClassVar = {
        **_Sized.documentation,
        "kind": KeyDoc("Pages have numbers.", "page"),
        "param": KeyDoc("The parameter with the number of the page.", "page"),
        "start": KeyDoc("The number of the first page.", "0"),
    }

    def first(self) -> Step:
        return self.sized({self.param: str(self.start)})

    def after(self, step: Step, page: Page) -> Step | None:
        return None if self.is_last(page) else self.sized({self.param: str(int(step.params[self.param]) + 1)})


class Offsets(_Sized):
    """Each request skips the records that were received."""

    kind: Literal["offset"]
    param: str
    start: int = 0

    documentation: ClassVar = {
        **_Sized.documentation,
        "kind": KeyDoc("Pages begin at a record.", "offset"),
        "param": KeyDoc("The parameter with the number of records to skip.", "offset"),
        "start": KeyDoc("The offset of the first page.", "0"),
    }

    def first(self) -> Step:
        return self.sized({self.param: str(self.start)})

    def after(self, step: Step, page: Page) -> Step | None:
        return (
            None if self.is_last(page) else self.sized({self.param: str(int(step.params[self.param]) + page.records)})
        )


class Cursor(_Sent):
    """Each response has the cursor of the next one at the dotted path `next`; the last has none."""

    kind: Literal["cursor"]
    param: str
    next: str = pydantic.Field(min_length=1)

    documentation: ClassVar = {
        **_Sent.documentation,
        "kind": KeyDoc("Each page names the next one.", "cursor"),
        "param": KeyDoc("The parameter with the cursor.", "after"),
        "next": KeyDoc("The dotted path to the cursor of the next page.", "meta.next"),
    }

    def first(self) -> Step:
        return Step()

    def after(self, step: Step, page: Page) -> Step | None:
        return None if page.also in _NO_MORE else Step({self.param: str(page.also)})

    @property
    def also(self) -> str | None:
        return self.next


class LastRecord(_Sent):
    """Each request names the last record that was received, until a response has no more."""

    kind: Literal["last_record"]
    param: str
    field: str = "id"
    more: str = pydantic.Field(min_length=1)

    documentation: ClassVar = {
        **_Sent.documentation,
        "kind": KeyDoc("Pages begin after a record.", "last_record"),
        "param": KeyDoc("The parameter with the record.", "starting_after"),
        "field": KeyDoc("The field of a record that names it.", "id"),
        "more": KeyDoc("The dotted path to whether more records follow.", "has_more"),
    }

    def first(self) -> Step:
        return Step()

    def after(self, step: Step, page: Page) -> Step | None:
        name = page.last.get(self.field) if isinstance(page.last, dict) else None
        return None if page.also in _NO_MORE or name is None else Step({self.param: str(name)})

    @property
    def also(self) -> str | None:
        return self.more


class NextAddress(Options):
    """Each response has the address of the next one at a dotted path; the last has none."""

    kind: Literal["next_url"]
    path: str = pydantic.Field(min_length=1)

    documentation: ClassVar = {
        "kind": KeyDoc("Each page has the address of the next one.", "next_url"),
        "path": KeyDoc("The dotted path to the address. It must be on the same host.", "paging.next"),
    }

    def first(self) -> Step:
        return Step()

    def after(self, step: Step, page: Page) -> Step | None:
        return None if page.also in _NO_MORE else Step(url=str(page.also))

    @property
    def also(self) -> str | None:
        return self.path


class Links(Options):
    """Each response has the address of the next one in its header `Link` (RFC 8288, rel=next); the last has none."""

    kind: Literal["link"]

    documentation: ClassVar = {
        "kind": KeyDoc("The header `Link` names the next page as `rel=next`.", "link"),
    }

    def first(self) -> Step:
        return Step()

    def after(self, step: Step, page: Page) -> Step | None:
        return None if page.link is None else Step(url=page.link)


Paging = Annotated[
    PageNumbers | Offsets | Cursor | LastRecord | NextAddress | Links, pydantic.Field(discriminator="kind")
]
