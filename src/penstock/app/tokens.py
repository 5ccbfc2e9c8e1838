"""API tokens: creation, revocation, and the check of a presented token."""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from penstock.app.context import Context, audit_entry
from penstock.errors import ConfigError, UsageError
from penstock.state.audited import AuditedAct
from penstock.state.tokens import ApiToken, TokenRole

if TYPE_CHECKING:
    from argon2 import PasswordHasher

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,62}")
_TOKEN = re.compile(r"penstock_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_REMEMBERED = 1000  # verified tokens of one process


class TokenService:
    """Creates and revokes tokens, and finds the token that a request presents.

    The secret of a token has 256 random bits. The database holds its Argon2 hash. A process remembers the digests of
    tokens that it has verified, because Argon2 is slow by design; whether the token is still valid is read each time.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._verified: OrderedDict[str, str] = OrderedDict()  # the digest of a token, and its id
        self._lock = threading.Lock()

    def create(self, name: str, role: str, *, actor: str | None = None) -> tuple[ApiToken, str]:
        """Create a token. Returns it and its text, which is stored nowhere. Audited. Raises ActRefused if a valid token
        has the name.

        >>> ws.tokens.create("airflow", "operator", actor="kim")[1]
        """
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"token name {name!r} is not valid: use letters, digits, '.', '_', '@' or '-', at most 63 of them"
            )
        chosen = _role(role)
        token_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
        entry = audit_entry(actor, AuditedAct.TOKENS_CREATE, {"name": name}, {"role": chosen.value})
        made = self._context.tokens.create(token_id, name, chosen, _hasher().hash(secret), entry)
        return made, f"penstock_{token_id}_{secret}"

    def all(self) -> list[ApiToken]:
        """Every token with its role and use, without secrets; revoked ones, too.

        >>> [token.name for token in ws.tokens.all()]
        """
        return self._context.tokens.all()

    def exist(self) -> bool:
        """Whether a token was ever created.

        >>> ws.tokens.exist()
        """
        return self._context.tokens.exist()

    def revoke(self, name: str, *, actor: str | None = None) -> bool:
        """End a token and its sessions at once. Returns False if it was revoked before. Audited.

        >>> ws.tokens.revoke("airflow", actor="kim")
        """
        entry = audit_entry(actor, AuditedAct.TOKENS_REVOKE, {"name": name})
        return self._context.tokens.revoke(name, entry)

    def find(self, text: str) -> ApiToken | None:
        """The valid token of this text; None for any other text. Records the use of the token.

        >>> ws.tokens.find("penstock_0123456789abcdef_...")
        """
        match = _TOKEN.fullmatch(text)
        if match is None:
            return None
        token = self._context.tokens.find(match[1])
        if token is None or not self._is_secret(token, match[2], hashlib.sha256(text.encode()).hexdigest()):
            return None
        if not self._context.database.read_only:
            self._context.tokens.touch(token)
        return token

    def _is_secret(self, token: ApiToken, secret: str, digest: str) -> bool:
        with self._lock:
            if self._verified.get(digest) == token.token_id:
                self._verified.move_to_end(digest)
                return True
        from argon2.exceptions import Argon2Error

        try:
            _hasher().verify(token.secret_hash, secret)
        except Argon2Error:
            return False
        with self._lock:
            self._verified[digest] = token.token_id
            while len(self._verified) > _REMEMBERED:
                self._verified.popitem(last=False)
        return True


def _role(text: str) -> TokenRole:
    try:
        return TokenRole(text)
    except ValueError:
        raise UsageError(f"role {text!r} is unknown (known: {', '.join(TokenRole)})") from None


def _hasher() -> PasswordHasher:
    try:
        from argon2 import PasswordHasher
    except ModuleNotFoundError as error:
        raise ConfigError("tokens need the package argon2-cffi: install `penstock[console]`") from error
    return PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)  # as OWASP recommends
