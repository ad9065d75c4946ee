"""Who may call: by secret, by UID, in an activation. The refused never reaches the upstream."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from sandbox_manager.host.relay import IncidentKind, KeyStyle, ProviderKey, Relay, Upstream, Upstreams
from sandbox_manager.host.relay.errors import ActivationError, SandboxOpenError, SlotTakenError, UnknownSandboxError
from tests.contract.relay.bench import ACTIVATION, KEY, SANDBOX, SECRET, SLOT, bench, listener
from tests.contract.relay.raw_upstream import RawUpstream, Seen

OTHER = "slot-secret-two-0123456789"


async def ok(seen: Seen) -> None:
    await seen.whole(b"{}", b"content-type: application/json")


async def call(port: int, secret: str | None, *, method: str = "POST", path: str = "/v1/messages") -> httpx2.Response:
    headers = {} if secret is None else {"x-api-key": secret}
    async with httpx2.AsyncClient(trust_env=False, timeout=10) as http:
        return await http.request(method, f"http://127.0.0.1:{port}{path}", headers=headers)


@asynccontextmanager
async def two_slots(my_slot_uid: int) -> AsyncIterator[tuple[Relay, RawUpstream, int, list[IncidentKind]]]:
    """A sandbox of this very process's network namespace: slot-1 has `my_slot_uid`, slot-2 another."""
    kinds: list[IncidentKind] = []
    async with (
        RawUpstream(ok) as upstream,
        Relay(
            Upstreams.same(Upstream(upstream.base_url, ProviderKey(KEY), KeyStyle.BEARER)),
            on_incident=lambda incident: kinds.append(incident.kind),
        ) as relay,
    ):
        sock, port = listener()
        await relay.open_sandbox(SANDBOX, sock, container_pid=os.getpid())
        relay.register_slot(SANDBOX, "slot-1", SECRET, uid=my_slot_uid)
        relay.register_slot(SANDBOX, "slot-2", OTHER, uid=my_slot_uid + 1)
        for slot in ("slot-1", "slot-2"):
            relay.begin_activation(SANDBOX, slot, f"{slot}-a", None)
        yield relay, upstream, port, kinds


async def test_the_own_secret_under_the_own_uid_passes() -> None:
    async with two_slots(os.getuid()) as (_, upstream, port, kinds):
        assert (await call(port, SECRET)).status_code == 200
        assert upstream.seen[0].header(b"authorization") == [f"Bearer {KEY}".encode()]
        assert upstream.seen[0].header(b"x-api-key") == []
        assert kinds == []


async def test_another_slots_secret_is_refused_and_never_forwarded() -> None:
    async with two_slots(os.getuid()) as (relay, upstream, port, kinds):
        response = await call(port, OTHER)
        assert response.status_code == 403
        assert response.json()["type"] == "error"
        assert response.json()["error"]["type"] == "permission_error"
        assert upstream.seen == []
        assert kinds == [IncidentKind.WRONG_UID]
        (incident,) = relay.incidents(SANDBOX)
        assert (incident.slot, incident.expected_uid, incident.observed_uid) == (
            "slot-2",
            os.getuid() + 1,
            os.getuid(),
        )
        assert (await relay.end_activation(SANDBOX, "slot-2", "slot-2-a")).refused == 1


async def test_a_caller_whose_uid_cannot_be_read_is_refused() -> None:
    async with (
        RawUpstream(ok) as upstream,
        Relay(Upstreams.same(Upstream(upstream.base_url, ProviderKey(KEY))), lookup=lambda *_: None) as relay,
    ):
        sock, port = listener()
        await relay.open_sandbox(SANDBOX, sock, container_pid=os.getpid())
        relay.register_slot(SANDBOX, SLOT, SECRET, uid=os.getuid())
        relay.begin_activation(SANDBOX, SLOT, ACTIVATION, None)
        assert (await call(port, SECRET)).status_code == 403
        assert relay.incidents(SANDBOX)[0].kind is IncidentKind.CALLER_UNKNOWN
        assert upstream.seen == []


@pytest.mark.parametrize("secret", ["", "wrong-secret-0123456789", SECRET[:-1], SECRET + "x", None, KEY])
async def test_a_credential_that_is_no_slots_is_refused(secret: str | None) -> None:
    async with bench(ok) as b:
        response = await call(b.port, secret)
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "authentication_error"
        assert b.upstream.seen == []
        assert [incident.kind for incident in b.incidents] == [IncidentKind.UNKNOWN_SECRET]


async def test_a_secret_of_another_sandbox_is_nobodys_here() -> None:
    async with bench(ok) as b:
        sock, port = listener()
        await b.relay.open_sandbox("sandbox-2", sock, container_pid=None)
        b.relay.register_slot("sandbox-2", SLOT, OTHER, uid=None)
        b.relay.begin_activation("sandbox-2", SLOT, "a", None)
        assert (await call(port, SECRET)).status_code == 401
        assert (await call(b.port, OTHER)).status_code == 401
        assert (await call(port, OTHER)).status_code == 200


async def test_two_secrets_in_one_request_pass_only_if_they_name_one_slot() -> None:
    async with bench(ok) as b:
        b.relay.register_slot(SANDBOX, "slot-2", OTHER, uid=None)
        b.relay.begin_activation(SANDBOX, "slot-2", "a", None)
        async with httpx2.AsyncClient(trust_env=False) as http:
            headers = {"x-api-key": SECRET, "authorization": f"Bearer {OTHER}"}
            assert (await http.post(f"{b.url}/v1/messages", headers=headers)).status_code == 401


async def test_a_revoked_secret_is_worth_nothing() -> None:
    async with bench(ok) as b:
        b.relay.revoke_slot(SANDBOX, SLOT)
        assert (await call(b.port, SECRET)).status_code == 401
        assert b.upstream.seen == []


async def test_outside_an_activation_a_model_request_is_refused_and_counted_apart() -> None:
    async with bench(ok) as b:
        await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        response = await call(b.port, SECRET)
        # 403 and not 401: the CLI retries a 401 for minutes.
        assert (response.status_code, response.json()["error"]["type"]) == (403, "permission_error")
        assert b.upstream.seen == []
        b.relay.begin_activation(SANDBOX, SLOT, "second", None)
        assert (await call(b.port, SECRET)).status_code == 200
        seen = await b.relay.end_activation(SANDBOX, SLOT, "second")
        assert (seen.outside, seen.requests, seen.refused) == (1, 1, 0)


@pytest.mark.parametrize("method", ["HEAD", "GET"])
async def test_the_greeting_passes_without_an_activation_and_without_the_key(method: str) -> None:
    async with bench(ok) as b:
        await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        for secret in (SECRET, None):
            assert (await call(b.port, secret, method=method, path="/api/hello")).status_code == 200
        assert len(b.upstream.seen) == 2
        for seen in b.upstream.seen:
            assert seen.header(b"x-api-key") == seen.header(b"authorization") == []
        assert (await call(b.port, "wrong-secret-0123456789", method=method, path="/api/hello")).status_code == 401


async def test_the_greeting_of_a_uid_that_is_no_slots_is_refused() -> None:
    async with two_slots(os.getuid() + 5) as (_, upstream, port, _kinds):
        assert (await call(port, None, method="HEAD", path="/api/hello")).status_code == 403
        assert upstream.seen == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/messages"),
        ("POST", "/v1/messages/batches"),
        ("GET", "/v1/messages/batches"),
        ("GET", "/v1/models"),
        ("GET", "/v1/files"),
        ("POST", "/v1/messages/"),
        ("POST", "/api/hello"),
        ("POST", "/v1/complete"),
        ("PUT", "/v1/messages"),
    ],
)
async def test_the_rest_of_the_providers_api_is_not_served(method: str, path: str) -> None:
    async with bench(ok) as b:
        response = await call(b.port, SECRET, method=method, path=path)
        assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")
        assert b.upstream.seen == []


@pytest.mark.parametrize("target", [b"/v1/messages/../files", b"//evil/v1/messages", b"http://evil/v1/messages", b"*"])
async def test_no_spelling_of_the_path_leads_elsewhere(target: bytes) -> None:
    async with bench(ok) as b:
        reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
        writer.write(
            b"POST %s HTTP/1.1\r\nhost: x\r\nx-api-key: %s\r\ncontent-length: 0\r\n\r\n" % (target, SECRET.encode())
        )
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 404")
        writer.close()
        assert b.upstream.seen == []


async def test_bytes_that_are_no_http_get_a_400_and_an_end() -> None:
    async with bench(ok) as b:
        reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
        writer.write(b"\x16\x03\x01 not http\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(-1), 5)).startswith(b"HTTP/1.1 400")
        writer.close()
        assert b.upstream.seen == []


async def test_counting_tokens_passes_but_is_no_model_request() -> None:
    async with bench(ok) as b:
        assert (await call(b.port, SECRET, path="/v1/messages/count_tokens?beta=true")).status_code == 200
        seen = await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        assert (seen.requests, seen.other_requests) == (0, 1)
        assert b.spans.get_finished_spans() == ()


async def test_registrations_and_activations_are_idempotent_and_refuse_what_differs() -> None:
    async with bench(ok) as b:
        b.relay.register_slot(SANDBOX, SLOT, SECRET, uid=None)
        b.relay.begin_activation(SANDBOX, SLOT, ACTIVATION, None)
        with pytest.raises(SlotTakenError):
            b.relay.register_slot(SANDBOX, SLOT, OTHER, uid=None)
        with pytest.raises(SlotTakenError):
            b.relay.register_slot(SANDBOX, "slot-2", SECRET, uid=None)
        with pytest.raises(ValueError, match="no UID"):
            b.relay.register_slot(SANDBOX, "slot-3", OTHER, uid=20001)
        with pytest.raises(ActivationError):
            b.relay.begin_activation(SANDBOX, SLOT, "another", None)
        with pytest.raises(ActivationError):
            await b.relay.end_activation(SANDBOX, SLOT, "another")
        first = await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        assert await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION) is first
        with pytest.raises(UnknownSandboxError):
            b.relay.begin_activation("elsewhere", SLOT, "a", None)
        sock, _ = listener()
        with pytest.raises(SandboxOpenError):
            await b.relay.open_sandbox(SANDBOX, sock, container_pid=None)
        sock.close()
