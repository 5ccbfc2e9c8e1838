"""Options of the source of kind http: requests, results, report jobs, errors and OAuth 2."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

import pydantic

from penstock.config.values import LIST, KeyDoc
from penstock.source.options import Options
from penstock.source.paging import Paging

ErrorMeaning = Literal["quota", "auth", "data", "transient", "config", "empty"]


def _header_text(text: str) -> str:
    if not text.isascii() or not text.isprintable():  # the error message of the client would contain it
        raise ValueError("must be one line of plain ASCII text")
    return text


def _as_text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


Header = Annotated[str, pydantic.AfterValidator(_header_text)]
Parameter = Annotated[str | int | float | bool, pydantic.AfterValidator(_as_text)]
Texts = Annotated[tuple[Parameter, ...], LIST]
Path = Annotated[str, pydantic.Field(min_length=1)]


class ErrorRule(Options):
    """One response that means an error, or that there is nothing. All given conditions must hold."""

    status: Annotated[tuple[int, ...], LIST] = ()
    path: Path | None = None
    values: Texts = ()
    contains: str | None = None
    error_class: ErrorMeaning
    retry_after: float | None = pydantic.Field(default=None, gt=0)

    documentation: ClassVar = {
        "status": KeyDoc("The HTTP status, or several. Default: any, also success.", "[400, 403]"),
        "path": KeyDoc("A dotted path in the JSON of the response.", "error.code"),
        "values": KeyDoc("The values at `path`. Default: any value.", "[17, 80004]"),
        "contains": KeyDoc("A text in the response.", "rate limit"),
        "error_class": KeyDoc(
            "How the response is treated; `empty`: there are no records.",
            "quota",
        ),
        "retry_after": KeyDoc("Seconds to wait after a quota error, if the response names none.", "300"),
    }

    @pydantic.model_validator(mode="after")
    def _has_a_condition(self) -> Self:
        if not self.status and self.path is None and self.contains is None:
            raise ValueError("needs status, path or contains: otherwise every response is an error")
        if self.values and self.path is None:
            raise ValueError("values needs path: where the value is")
        if self.retry_after is not None and self.error_class != "quota":
            raise ValueError("retry_after belongs to error_class: quota")
        return self


class OAuthOptions(Options):
    """OAuth 2: the access token of each request is fetched with client credentials, or with a refresh token."""

    token_url: str
    client_id: str
    client_secret: str | None = pydantic.Field(default=None, repr=False)
    refresh_token: str | None = pydantic.Field(default=None, repr=False)
    scope: str | None = None
    params: dict[str, Parameter] = pydantic.Field(default_factory=dict, repr=False)
    client_auth: Literal["basic", "body"] = "basic"

    documentation: ClassVar = {
        "token_url": KeyDoc("The address that issues access tokens.", "https://login.example.com/oauth2/token"),
        "client_id": KeyDoc("The id of the client.", "penstock"),
        "client_secret": KeyDoc("The secret of the client.", "${CLIENT_SECRET:-secret}"),
        "refresh_token": KeyDoc(
            "The refresh token. Without it, the grant is `client_credentials`.", "${REFRESH_TOKEN:-secret}"
        ),
        "scope": KeyDoc("The requested scopes, separated by spaces.", "reports.read"),
        "params": KeyDoc("Additional parameters of the token request.", "{audience: reports}"),
        "client_auth": KeyDoc("Where the client sends its secret: in the header (`basic`) or in the body.", "body"),
    }


class ReportStep(Options):
    """A request of a report job. `{report_id}` is the id of the report."""

    url: str
    method: Literal["GET", "POST"] = "GET"
    params: dict[str, Parameter] = pydantic.Field(default_factory=dict)
    body: dict[str, Any] | None = None

    documentation: ClassVar = {
        "url": KeyDoc("The address, relative to that of the request.", "reports/{report_id}"),
        "method": KeyDoc("The method.", "GET"),
        "params": KeyDoc("Parameters of the address.", "{fields: status}"),
        "body": KeyDoc("A JSON document that is sent with POST.", '{id: "{report_id}"}'),
    }


class ReportJob(Options):
    """A report that the service makes in the background: the request creates it, then its state is polled, then its
    result is fetched."""

    id: Path
    status: ReportStep
    state: Path
    done: Texts
    failed: Texts = ()
    empty: Texts = ()
    reason: Path | None = None
    result: ReportStep | None = None
    result_address: Path | None = None
    first_wait: float = pydantic.Field(default=2.0, gt=0)
    longest_wait: float = pydantic.Field(default=60.0, gt=0)
    timeout: float = pydantic.Field(default=3600.0, gt=0)

    documentation: ClassVar = {
        "id": KeyDoc("The dotted path to the id of the report, in the response that creates it.", "reportId"),
        "status": KeyDoc("The request for the state of the report.", '{url: "reports/{report_id}"}'),
        "state": KeyDoc("The dotted path to the state.", "status"),
        "done": KeyDoc("The states of a finished report.", "[COMPLETED]"),
        "failed": KeyDoc("The states of a report that failed.", "[FAILED, CANCELLED]"),
        "empty": KeyDoc("The states of a finished report without rows.", "[NO_DATA]"),
        "reason": KeyDoc("The dotted path to the reason of a failure.", "failureReason"),
        "result": KeyDoc("The request for the result, with pages.", '{url: "reports/{report_id}/rows"}'),
        "result_address": KeyDoc(
            "Instead of `result`: the dotted path to the address of the result, in the response with the state. It is"
            " fetched without the headers of the source. Without an address the report is empty.",
            "url",
        ),
        "first_wait": KeyDoc("Seconds before the first request for the state; later pauses grow by half.", "5"),
        "longest_wait": KeyDoc("The longest pause in seconds.", "30"),
        "timeout": KeyDoc("Seconds after which an unfinished report is a transient error.", "1800"),
    }

    @pydantic.model_validator(mode="after")
    def _one_result(self) -> Self:
        if (self.result is None) == (self.result_address is None):
            raise ValueError("needs either result or result_address: where the rows are")
        if not self.done:
            raise ValueError("done: name at least one state")
        return self


class Request(Options):
    """Options of a request, for the source or a query; those of the query take precedence."""

    url: str | None = None
    method: Literal["GET", "POST"] = "GET"
    params: dict[str, Parameter] = pydantic.Field(default_factory=dict, repr=False)
    body: dict[str, Any] | None = pydantic.Field(default=None, repr=False)
    form: dict[str, Parameter] | None = pydantic.Field(default=None, repr=False)
    format: Literal["json", "jsonl", "csv"] = "json"
    compression: Literal["none", "gzip", "zip"] = "none"
    delimiter: str = pydantic.Field(default=",", min_length=1, max_length=1)
    records: str = ""
    records_optional: bool = False
    columns: dict[str, Path] = pydantic.Field(default_factory=dict)
    date_field: str | None = None
    date_format: str | None = None
    paging: Paging | None = None
    report: ReportJob | None = None
    errors: Annotated[tuple[ErrorRule, ...], LIST] = ()

    documentation: ClassVar = {
        "url": KeyDoc(
            "The address, with `{customer_id}`, `{query_name}`, and `{date}` or `{first_date}` and `{last_date}`.",
            '"https://api.example.com/{customer_id}?day={date}"',
        ),
        "method": KeyDoc("The method.", "POST"),
        "params": KeyDoc("Parameters of the address, with the same placeholders.", '{day: "{date}"}'),
        "body": KeyDoc(
            'A JSON document that is sent with POST, with the same placeholders. `"{dd:int}"` is a number.',
            '{from: "{first_date}", to: "{last_date}"}',
            "map",
        ),
        "form": KeyDoc("Form fields that are sent with POST, instead of `body`.", '{day: "{date}"}'),
        "format": KeyDoc("The format of the response or result.", "csv"),
        "compression": KeyDoc(
            "How the file itself is compressed; the transport's own compression needs no setting.", "gzip"
        ),
        "delimiter": KeyDoc("The separator of the cells of CSV.", '";"'),
        "records": KeyDoc("The dotted path to the list of records. By default the response itself.", "data.items"),
        "records_optional": KeyDoc("A response without the list has no records. By default it is an error.", "true"),
        "columns": KeyDoc(
            "Fields by the dotted path to their value in a record; a number is a place in a list. Texts are converted"
            " to the type of the field, as cells of CSV are. By default records are kept as received.",
            "{clicks: metrics.0.value}",
            "map",
        ),
        "date_field": KeyDoc("The field with the day of a record. Required when one request covers many days.", "day"),
        "date_format": KeyDoc("How `date_field` is written, as in strptime. Default: `YYYY-MM-DD`.", '"%Y%m%d"'),
        "paging": KeyDoc("How the next page is requested.", "{kind: link}"),
        "report": KeyDoc(
            "The request creates a report job.",
            '{id: id, status: {url: "{report_id}"}, state: state, done: [done], result_address: url}',
        ),
        "errors": KeyDoc(
            "Responses that mean an error, in order; the first rule that matches decides. Others are classified by"
            " their status.",
            "[{path: error.code, values: [17], error_class: quota}]",
        ),
    }

    @pydantic.model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.body is not None and self.form is not None:
            raise ValueError("give body or form, not both")
        if self.method == "GET" and (self.body is not None or self.form is not None):
            raise ValueError("body and form need method: POST")
        if self.format != "json" and self.paging is not None:
            raise ValueError("paging needs format: json")
        if self.format != "json" and self.records:
            raise ValueError("records needs format: json")
        return self


class HttpOptions(Request):
    """Options of `sources.<name>` for kind http. Headers and OAuth are allowed only here: options of a query are stored
    with its contract."""

    headers: dict[str, Header] = pydantic.Field(default_factory=dict, repr=False)
    oauth: OAuthOptions | None = pydantic.Field(default=None, repr=False)
    timeout: float = pydantic.Field(default=60.0, gt=0)

    documentation: ClassVar = {
        **Request.documentation,
        "headers": KeyDoc(
            "Headers of each request, with `{customer_id}` filled in. They are never shown.",
            '{Authorization: "Bearer ${TOKEN}"}',
            "map",
        ),
        "oauth": KeyDoc(
            "OAuth 2 (extra `oauth`).", "{token_url: 'https://login.example.com/token', client_id: penstock}"
        ),
        "timeout": KeyDoc("The largest number of seconds without a byte from the server.", "30"),
    }


SOURCE_ONLY = tuple(name for name in HttpOptions.model_fields if name not in Request.model_fields)
