"""Talking to a hub: its address, the token, how long to be patient, and what its errors mean.

`huggingface_hub` is the client: its session (proxies, certificates, HF_HUB_OFFLINE), addresses, headers and errors. The
patience is ours, because the client's own has no limit on a connection that stays open and brings nothing.
"""

from __future__ import annotations

import email.utils
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # its public names, which it does not mark as such
    build_hf_headers,
    get_session,
    hf_raise_for_status,
    parse_ratelimit_headers,
)

from littlelm.errors import UserError

_T = TypeVar("_T")
RETRY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524})
_CONNECT_SECONDS = 15.0
_KNOCKS = 4  # attempts to find out what there is, after the first, at a hub that cannot be reached at all
_UNREACHABLE = (httpx2.ConnectError, httpx2.ConnectTimeout)
_LONGEST_ASKED = 900.0  # seconds; the hub's own limits begin anew every 300
_LISTEN_SECONDS = 0.25  # how often a wait asks whether it is still wanted


@dataclass(frozen=True)
class Patience:
    """How failures are met: with `retries` further attempts, waits that double, and jitter so that threads spread."""

    retries: int = 10  # failures in a row without progress, after the first
    backoff: float = 1.0  # seconds
    stall: float = 30.0  # seconds without a byte

    def timeout(self) -> httpx2.Timeout:
        connect = min(self.stall, _CONNECT_SECONDS)
        return httpx2.Timeout(self.stall, connect=connect, pool=None)  # the pool: as long as other downloads last

    def seconds(self, failures: int, asked: float | None) -> float:
        """How long to wait after so many failures in a row; `asked`: what the server wants at least."""
        own = min(60.0, 2.0 ** min(failures - 1, 30)) * self.backoff
        return min(asked or 0.0, _LONGEST_ASKED) + random.uniform(0.5, 1.0) * own


class TryAgainError(Exception):
    """A failure that may pass; `asked`: seconds the server wants us to wait."""

    def __init__(self, reason: str, asked: float | None = None, unreachable: bool = False) -> None:
        super().__init__(reason)
        self.asked = asked
        self.unreachable = unreachable


@dataclass(frozen=True)
class Hub:
    """A hub, or a mirror of it."""

    mirror: str | None
    patience: Patience

    @property
    def endpoint(self) -> str:
        return (self.mirror or constants.ENDPOINT).rstrip("/")

    def headers(self, url: str) -> dict[str, str]:
        """What every request carries. The token goes to the hub of the environment only.

        A run file may come from anyone, so a mirror that it names must not be able to ask for the reader's token.
        """
        token = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
        token = (token or "").strip() if _origin(url) == _origin(constants.ENDPOINT) else ""
        headers: dict[str, str] = build_hf_headers(token=token or False, library_name="little-lm")
        return headers

    def get(self, url: str, params: dict[str, Any] | None = None) -> httpx2.Response:
        """GET something small. Raises TryAgainError, or what the client raises for an answer that will not change."""
        try:
            response = get_session().get(url, headers=self.headers(url), params=params, timeout=self.patience.timeout())
        except httpx2.UnsupportedProtocol as error:
            raise UserError(
                f"{url}: {error}; set `endpoint` of the source to a URL that begins with https://"
            ) from None
        except httpx2.TransportError as error:
            raise TryAgainError(reason_of(error), unreachable=isinstance(error, _UNREACHABLE)) from None
        raise_if_passing(response)
        hf_raise_for_status(response)
        return response

    def persistently(self, what: str, work: Callable[[], _T], say: Callable[[str], None]) -> _T:
        """Do something small until it succeeds. Raises UserError when it does not, or will not.

        A hub that never answers is known after a few attempts: nobody waits minutes to hear that there is no network.
        """
        failures = 0
        while True:
            try:
                return work()
            except TryAgainError as error:
                failures += 1
                if failures > min(self.patience.retries, _KNOCKS if error.unreachable else self.patience.retries):
                    raise UserError(
                        f"{what}: {error} ({failures} attempts at {self.endpoint}); check the network, or set "
                        "`endpoint` of the source (or HF_ENDPOINT in the environment) to a mirror"
                    ) from None
                seconds = self.patience.seconds(failures, error.asked)
                say(f"{what}: {error}; trying again in {seconds:.0f} s")
                time.sleep(seconds)


def _origin(url: str) -> tuple[str, str, int | None]:
    parsed = httpx2.URL(url)
    return parsed.scheme, parsed.host, parsed.port


def raise_if_passing(response: httpx2.Response) -> None:
    """Raise TryAgainError when the status says that another attempt may succeed."""
    # A storage server behind the hub answers 403 when the address it was given has expired; a new one is asked for.
    expired = response.status_code == 403 and bool(response.history)
    if response.status_code in RETRY_STATUS or expired:
        reason = "the storage refused its own address" if expired else response.reason_phrase
        raise TryAgainError(f"HTTP {response.status_code} {reason}".strip(), _asked_seconds(response))


def _asked_seconds(response: httpx2.Response) -> float | None:
    """What `Retry-After` (seconds or a date), or the hub's `RateLimit` header, asks for."""
    value = response.headers.get("Retry-After", "").strip()
    if value:
        try:
            return max(0.0, float(value))
        except ValueError:
            pass
        try:
            return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
        except ValueError:
            return None
    limit = parse_ratelimit_headers(response.headers) if response.status_code == 429 else None
    return float(limit.reset_in_seconds) if limit is not None and limit.remaining == 0 else None


def reason_of(error: httpx2.TransportError) -> str:
    """A failure of the connection in plain words."""
    if isinstance(error, _UNREACHABLE):
        return f"no connection ({error})" if str(error) else "no connection"
    if isinstance(error, httpx2.TimeoutException):
        return "the connection brought nothing"
    return f"the connection was cut ({error})" if str(error) else "the connection was cut"


def wait(seconds: float, listen: Callable[[], None]) -> None:
    """Sleep, calling `listen` meanwhile; what it raises ends the wait."""
    end = time.monotonic() + seconds
    listen()
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _LISTEN_SECONDS))
        listen()


def explain(error: Exception, hub: Hub, repo: str, what: str) -> UserError:
    """The one clear error for an answer that will not change. `what` names the file or the revision asked for."""
    if isinstance(error, OfflineModeIsEnabled):
        return UserError(
            f"{repo}: {what} is not in data.cache_dir and HF_HUB_OFFLINE forbids fetching it; unset it for once"
        )
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else 0
    said = getattr(error, "server_message", None) or ""
    said = f" ({' '.join(said.split())})" if said else ""
    token = (
        "the token (HF_TOKEN) is not sent to a mirror named in the run file; set HF_ENDPOINT in the environment "
        "instead of `endpoint` if that mirror needs it"
        if hub.mirror is not None
        else "set HF_TOKEN in the environment to a token that may read it"
    )
    if isinstance(error, GatedRepoError):
        return UserError(f"{repo} is gated{said}: accept its terms at {hub.endpoint}/datasets/{repo}, then {token}")
    if isinstance(error, RevisionNotFoundError):
        return UserError(f"{repo}: no such revision: {what}{said}; set `revision` of the source")
    if isinstance(error, RemoteEntryNotFoundError):
        return UserError(f"{repo}: no such file: {what}{said}; set `files` of the source")
    if isinstance(error, RepositoryNotFoundError) or status in (401, 403):
        if status == 404:
            return UserError(
                f"{repo}: {hub.endpoint} has no such data set, or a private one{said}; check `repo` of the source "
                f"(owner/name), or {token}"
            )
        return UserError(
            f"{repo}: {hub.endpoint} refuses access (HTTP {status}){said}: there is no such data set, or it is private "
            f"or gated; check the name, or {token}"
        )
    return UserError(f"{repo}: {hub.endpoint} answered HTTP {status} for {what}{said}")


PERMANENT = (HfHubHTTPError, OfflineModeIsEnabled)
"""What the client raises for answers that another attempt will not change."""
