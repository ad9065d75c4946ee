"""Calls the model at ANTHROPIC_BASE_URL. One call at a time; another thread may abort it."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.parse
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

Event = dict[str, Any]

_TIMEOUT_S = 600.0


class StatusError(Exception):
    """The answer was an error with a status."""

    def __init__(self, status: int, message: str, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s


class ConnectionLostError(Exception):
    """No answer, or TCP ended in the middle of one."""


class BrokenStreamError(Exception):
    """The stream ended in order but before its closing events, or said `error`: asked again at once without streaming."""


class ModelClient:
    """Requests of one session."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self._base = urllib.parse.urlsplit(base_url)
        self._api_key = api_key
        self._socket: socket.socket | None = None
        self._is_aborted = False

    def hello(self) -> None:
        """The one request the program makes at its start. Its answer does not matter."""
        with suppress(OSError, http.client.HTTPException):
            connection = self._connection(timeout_s=5.0)
            connection.request("HEAD", "/api/hello")
            connection.getresponse().read()
            connection.close()

    def ready(self) -> None:
        """Forgets an abort: the next call is a new one."""
        self._is_aborted = False

    def abort(self) -> None:
        """Ends the call in the other thread, now or as soon as it has a socket."""
        self._is_aborted = True
        if (held := self._socket) is not None:
            with suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)

    def stream(self, body: dict[str, Any], headers: dict[str, str]) -> Iterator[Event]:
        """Yields the events of a streamed answer up to `message_stop`."""
        connection, response = self._post({**body, "stream": True}, headers)
        try:
            stopped = False
            for event in _events(response):
                if event.get("type") == "error":
                    raise BrokenStreamError(str(event.get("error")))
                stopped = stopped or event.get("type") == "message_stop"
                yield event
            if not stopped:
                raise BrokenStreamError("the stream ended before message_stop")
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionLostError(str(error)) from error
        finally:
            self._close(connection)

    def whole(self, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        """The answer as one message."""
        connection, response = self._post(body, headers)
        try:
            message: dict[str, Any] = json.loads(response.read())
            return message
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionLostError(str(error)) from error
        finally:
            self._close(connection)

    def _connection(self, timeout_s: float = _TIMEOUT_S) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._base.hostname or "", self._base.port or 80, timeout=timeout_s)

    def _post(
        self, body: dict[str, Any], headers: dict[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self._connection()
        try:
            connection.connect()
            # A descriptor of our own: the connection gives its away to the answer.
            self._socket = connection.sock.dup()
            if self._is_aborted:
                raise ConnectionLostError("aborted")
            connection.request(
                "POST",
                f"{self._base.path.rstrip('/')}/v1/messages?beta=true",
                json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass"),
                {
                    "content-type": "application/json",
                    "x-api-key": self._api_key,
                    "anthropic-version": "2023-06-01",
                    "user-agent": "claude-cli/2.1.220 (external, sdk-cli)",
                    **headers,
                },
            )
            response = connection.getresponse()
            if response.status != 200:
                text = response.read()
                raise StatusError(response.status, _message_of(text), _seconds(response.getheader("retry-after")))
            return connection, response
        except (OSError, http.client.HTTPException) as error:
            self._close(connection)
            raise ConnectionLostError(str(error)) from error
        except (StatusError, ConnectionLostError):
            self._close(connection)
            raise

    def _close(self, connection: http.client.HTTPConnection) -> None:
        held, self._socket = self._socket, None
        if held is not None:
            held.close()
        connection.close()


def _events(response: http.client.HTTPResponse) -> Iterator[Event]:
    data: list[bytes] = []
    rest = b""
    # Not readline: at a cut between two chunks it takes the end of TCP for the end of the body.
    while piece := response.read1(65536):
        *lines, rest = (rest + piece).split(b"\n")
        for line in (line.rstrip(b"\r") for line in lines):
            if line.startswith(b"data:"):
                data.append(line[5:].lstrip())
            elif not line and data:
                yield json.loads(b"\n".join(data))
                data.clear()


def _message_of(text: bytes) -> str:
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text.decode("utf-8", "replace")[:200]


def _seconds(value: str | None) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        return None
