"""Keeps this host registered: attests at start and again when the manager has forgotten it, and sends heartbeats.

UNREGISTERED ──attest──▶ ATTESTING ──accepted──▶ REGISTERED ──heartbeat refused, HOST_UNKNOWN──▶ UNREGISTERED
                             └──refused──▶ REFUSED (retried: the manifest or the image may change)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import structlog

from sandbox_manager.host.errors import RegistrationRefusedError
from standfast.host.v1 import host_registry_pb2 as pb
from standfast.host.v1 import host_registry_pb2_grpc
from standfast_chassis.errors import StandfastError
from standfast_chassis.keys import PublicKey, SigningKey, TokenKind
from standfast_chassis.rpc_status import RemoteError, remote_errors

_log = structlog.get_logger("standfast.host.registration")

_CALL_TIMEOUT_S = 120.0
_HEARTBEAT_TIMEOUT_S = 5.0
_RETRY_FIRST_S = 0.2
_RETRY_MAX_S = 5.0


class Registration:
    """The host's standing with its manager. `run` it in a task of its own.

    `manager` is its address, for what is said. `evidence` measures this host anew;
    `heartbeat` gives the engine's truth. `lease_left_s` is elapsed time, not a wall clock.
    """

    def __init__(
        self,
        *,
        channel: grpc.aio.Channel,
        manager: str,
        host_id: str,
        key: SigningKey,
        address: str,
        engine: str,
        evidence: Callable[[], Awaitable[Mapping[str, Any]]],
        heartbeat: Callable[[], Awaitable[pb.HeartbeatRequest]],
    ) -> None:
        self._stub: host_registry_pb2_grpc.HostRegistryServiceAsyncStub = (
            host_registry_pb2_grpc.HostRegistryServiceStub(channel)
        )
        self._manager = manager
        self._host_id = host_id
        self._key = key
        self._address = address
        self._engine = engine
        self._evidence = evidence
        self._heartbeat = heartbeat
        self._lease_generation = 0
        self._lease_ends_at = 0.0
        self._heartbeat_every_s = 5.0
        self.manager_key: PublicKey | None = None
        self.registered = asyncio.Event()
        self.refused: RemoteError | None = None
        self._unmeasured: str | None = None  # what was said last
        self._is_away = False  # that the manager does not answer has been said

    @property
    def lease_left_s(self) -> float:
        """Seconds until the host lease ends; negative when it has: nothing may be started or admitted then."""
        return self._lease_ends_at - time.monotonic()

    async def run(self, on_state: Callable[[bool], Awaitable[None]]) -> None:
        """Attests, beats, and attests again when it must, for ever. `on_state` hears whether the host is registered."""
        retry_s = _RETRY_FIRST_S
        while True:
            try:
                await self._attest()
                await on_state(True)
                self.registered.set()
                retry_s = _RETRY_FIRST_S
                await self._beat()
            except RemoteError as error:
                if error.code is grpc.StatusCode.UNAVAILABLE:
                    self._tell_away(error)
                elif self.refused is None:
                    _log.error(
                        "the manager refused this host", reason=error.reason, message=error.message, **error.metadata
                    )
                    self.refused = error
            except RegistrationRefusedError as error:
                _log.error("registration failed", message=error.message)
            except StandfastError as error:
                self._tell_unmeasured(error)
            except Exception:  # noqa: BLE001 (the outermost loop: a host whose beat has crashed must not stay silent for ever)
                _log.exception("a heartbeat crashed; this host registers anew")
            self.registered.clear()
            await on_state(False)
            await asyncio.sleep(retry_s)
            retry_s = min(retry_s * 2, _RETRY_MAX_S)

    def _tell_away(self, error: RemoteError) -> None:
        """Said once an outage: the address may be a wrong one, and then nobody else would ever say so."""
        if not self._is_away:
            self._is_away = True
            _log.warning(
                "the manager does not answer; trying until it does", manager=self._manager, message=error.message
            )

    def _tell_unmeasured(self, error: StandfastError) -> None:
        """No engine, no image, an image without our supervisor: said once, not at every try."""
        if error.message != self._unmeasured:
            self._unmeasured = error.message
            _log.error("this host cannot measure itself", reason=error.reason, message=error.message, **error.metadata)

    async def _attest(self) -> None:
        # Written to by hand: a request generator that still waits when the call ends is left behind by grpc.aio, loudly.
        call = self._stub.AttestHost(timeout=_CALL_TIMEOUT_S)
        try:
            with remote_errors():
                await call.write(pb.AttestHostRequest(hello=self._hello()))
                challenge = await _next(call, "challenge")
                self.manager_key = PublicKey.from_jwk(challenge.challenge.manager_public_key_jwk)
                evidence = {**await self._evidence(), "nonce": challenge.challenge.nonce}
                token = self._key.sign(evidence, TokenKind.EVIDENCE)
                await call.write(pb.AttestHostRequest(evidence=pb.HostEvidence(evidence_jws=token)))
                accepted = (await _next(call, "accepted")).accepted
                await call.done_writing()
        finally:
            call.cancel()
        self._lease_generation = accepted.lease_generation
        self._heartbeat_every_s = accepted.heartbeat_ms / 1000
        self._lease_ends_at = time.monotonic() + accepted.lease_ms / 1000
        self.refused = self._unmeasured = None
        self._is_away = False
        _log.info("registered", host_id=self._host_id, lease_generation=self._lease_generation)

    def _hello(self) -> pb.HostHello:
        return pb.HostHello(
            host_id=self._host_id,
            public_key_jwk=self._key.public.jwk_text(),
            address=self._address,
            engine=self._engine,
        )

    async def _beat(self) -> None:
        while True:
            request = await self._heartbeat()
            request.host_id = self._host_id
            request.lease_generation = self._lease_generation
            sent_at = time.monotonic()
            try:
                with remote_errors():
                    answer = await self._stub.Heartbeat(request, timeout=_HEARTBEAT_TIMEOUT_S)
                # From when it was sent: the manager counted from a later moment, so this side is the careful one.
                self._lease_ends_at = sent_at + answer.lease_ms / 1000
            except RemoteError as error:
                if error.code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    _log.warning("heartbeat refused", reason=error.reason, message=error.message)
                    return
            await asyncio.sleep(self._heartbeat_every_s)


async def _next(call: Any, step: str) -> pb.AttestHostResponse:
    """The manager's next message, which must be this step. Raises AioRpcError with the status of a call that ended."""
    answer = await call.read()
    if answer is grpc.aio.EOF:
        if await call.code() is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(
                await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
            )
        raise RegistrationRefusedError(f"the manager ended the registration; expected `{step}`.", {"step": step})
    if not isinstance(answer, pb.AttestHostResponse) or answer.WhichOneof("step") != step:
        raise RegistrationRefusedError(f"expected `{step}` from the manager, found another step.", {"step": step})
    return answer
