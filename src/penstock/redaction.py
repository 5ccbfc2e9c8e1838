"""Replaces secrets in texts that are shown or logged: values that the process knows, and forms of passwords and
tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from urllib.parse import quote, unquote

MASK = "***"

# Names of variables, options and URL parameters whose value is a secret.
_SECRET_NAMES = re.compile(
    r"(?i)pass(word|wd|phrase)?$|password|pwd|secret|token|credential|authorization|cookie|signing"
    r"|(api|access|private|account|signature|client)[_-]?key|^key$"
)
_WHOLE_WORD = 8  # a shorter secret is hidden only as a whole word: `test` must not change `latest`
_SHORTEST = 4
_COMMON_VALUES = {"true", "false", "none", "null", "default"}
_SCHEMES = {"bearer", "basic", "token"}
_DATE_OR_NUMBER = re.compile(r"[\d.:TZ+-]+")
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
_LOGIN = re.compile(r"://(?P<login>[^/\s?#]*)@")
_PARAMETER = re.compile(r"[?&;](?P<name>[^=&;\s]+)=(?P<value>[^&;\s]+)")

# What has the form of a secret is hidden although its value is not known.
_FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(://[^:/@\s'\"]*):[^@\s/'\"]*@"), rf"\1:{MASK}@"),
    (re.compile(r"\bpenstock_[0-9a-f]{16}_[\w-]+"), f"penstock_{MASK}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {MASK}"),
    (re.compile(r"(?i)\b(\w*password|\w*secret|\w*token|api_?key)=[^&\s'\",;)]+"), rf"\1={MASK}"),
)


def names_a_secret(name: str) -> bool:
    """Whether the value under this name (of a variable, an option, a header) is a secret."""
    return bool(_SECRET_NAMES.search(name))


class Redactor:
    """Knows secrets, and replaces them in texts. A secret is replaced by the name of its variable, or by `***`."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    def remember(self, value: str, shown: str = MASK, *, is_named: bool = True) -> None:
        """Hide a value from now on. `is_named` states that its name is that of a secret. Another value is hidden if it
        is long, and neither a number nor a date; a URL, if it has a password or a secret parameter. These parts of a
        URL are hidden, too."""
        value = value.strip()
        if "://" in value and not any(character.isspace() for character in value):
            parts = list(_secret_parts(value))
            for part in parts:
                self._add(part, MASK)
            if parts or is_named:
                self._add(value, shown)
            return
        if is_named or (len(value) >= _WHOLE_WORD and not _DATE_OR_NUMBER.fullmatch(value)):
            scheme, _, credentials = value.partition(" ")
            if scheme.lower() in _SCHEMES:
                self._add(credentials, shown)  # an error may show it without its scheme
            self._add(value, shown)

    def remember_environment(self, environ: Mapping[str, str]) -> None:
        """Hide the values of the variables that libraries read themselves: PGPASSWORD, AWS_SECRET_ACCESS_KEY."""
        for name, value in environ.items():
            if names_a_secret(name) and not name.upper().endswith(("_FILE", "_PATH", "_URL")):
                self.remember(value, f"${{{name}}}")

    def forget(self) -> None:
        """Forget every value."""
        self._shown, self._pattern = {}, None

    def hide(self, text: str) -> str:
        """The text without secrets."""
        if self._pattern is None and self._shown:
            self._pattern = _any_of(self._shown)
        if self._pattern is not None:
            text = self._pattern.sub(self._replacement, text)
        for form, shown in _FORMS:
            text = form.sub(shown, text)
        return text

    def _replacement(self, found: re.Match[str]) -> str:
        return self._shown[found.group()]

    def _add(self, value: str, shown: str) -> None:
        if len(value) < _SHORTEST or value.lower() in _COMMON_VALUES:
            return
        # Messages quote values, which escapes characters, and URLs encode them.
        forms = {value, repr(value)[1:-1], quote(value), quote(value, safe="")}
        self._shown = {**self._shown, **{form: self._shown.get(form, shown) for form in forms}}
        self._pattern = None


SECRETS = Redactor()
"""The secrets of this process."""


def _any_of(values: Mapping[str, str]) -> re.Pattern[str]:
    by_length: Callable[[str], int] = len
    forms = [
        re.escape(value) if len(value) >= _WHOLE_WORD else rf"(?<!\w){re.escape(value)}(?!\w)"
        for value in sorted(values, key=by_length, reverse=True)
    ]
    return re.compile("|".join(forms))


def _secret_parts(url: str) -> list[str]:
    """The password, and the values of parameters that are named like secrets, as written and decoded."""
    found = []
    if login := _LOGIN.search(url):
        _, separator, password = login["login"].partition(":")
        found += [password] if separator and password else []
    found += [one["value"] for one in _PARAMETER.finditer(url) if names_a_secret(one["name"])]
    return [*found, *(unquote(value) for value in found if _ENCODED.search(value))]
