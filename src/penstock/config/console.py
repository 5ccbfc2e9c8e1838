"""Settings of the web console: its address, and login through an identity provider."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

import pydantic
from pydantic import AfterValidator

from penstock.config.values import Declared, KeyDoc

EVERYONE = "*"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

Text = Annotated[str, pydantic.Field(min_length=1)]
Texts = Annotated[tuple[Text, ...], pydantic.Field(strict=False)]
Role = Literal["viewer", "operator", "admin"]

_RANKS: tuple[Role, ...] = ("admin", "operator", "viewer")  # the highest role first


def _address(url: str) -> str:
    parts = urlsplit(url)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    if not parts.hostname or not is_safe or parts.query or parts.fragment:
        raise ValueError("needs an https address without query: https://login.example.com (http on loopback only)")
    return url.rstrip("/")


class OidcSettings(Declared):
    """Login through an OpenID Connect provider: who it is, and which of its groups have which role."""

    issuer: Annotated[str, AfterValidator(_address)]
    client_id: Text
    client_secret: str | None = pydantic.Field(default=None, repr=False)
    scopes: Texts = ("openid", "profile", "email")
    name_claim: Text = "email"
    role_claim: Text = "groups"
    roles: dict[Role, Texts]

    documentation: ClassVar = {
        "issuer": KeyDoc("The address of the provider.", "https://login.example.com"),
        "client_id": KeyDoc("The id of the console at the provider.", "penstock"),
        "client_secret": KeyDoc("The secret of the console at the provider.", "${OIDC_CLIENT_SECRET}"),
        "scopes": KeyDoc("What the console asks for. `openid` is required.", "[openid, email, groups]"),
        "name_claim": KeyDoc("The claim that names the person in the audit log.", "preferred_username"),
        "role_claim": KeyDoc("The claim that `roles` compares: a text or a list.", "roles"),
        "roles": KeyDoc(
            "The values of `role_claim` for each role. `*` gives a role to everyone who can log in.",
            "{admin: [data-platform], viewer: ['*']}",
        ),
    }

    @pydantic.model_validator(mode="after")
    def _asks_for_an_id(self) -> OidcSettings:
        if "openid" not in self.scopes:
            raise ValueError("scopes needs openid: without it the provider sends no identity")
        return self

    def role_of(self, values: Iterable[str]) -> str | None:
        """The highest role that these values of the claim give; None if they give none."""
        known = {*values, EVERYONE}
        return next((role for role in _RANKS if known & set(self.roles.get(role, ()))), None)


class ConsoleSettings(Declared):
    """The web console."""

    url: Annotated[str, AfterValidator(_address)] | None = None
    oidc: OidcSettings | None = None

    documentation: ClassVar = {
        "url": KeyDoc(
            "The address of the console as browsers see it, if a proxy stands before it.",
            "https://penstock.example.com",
        ),
        "oidc": KeyDoc(
            "Login through an OpenID Connect provider, in addition to tokens.",
            "{issuer: https://login.example.com, client_id: penstock, roles: {viewer: ['*']}}",
        ),
    }
