"""The relay in front of the lab provider: what its log says arrived is what was sent, and the key is its own."""

from __future__ import annotations

import hashlib

import httpx2

from sandbox_manager.host.relay import ProviderKey, Relay, Upstream, Upstreams
from standfast_lab.provider import LabProvider
from tests.contract.relay.bench import ACTIVATION, KEY, SANDBOX, SECRET, SLOT, listener


def request(text: str, *, stream: bool) -> dict[str, object]:
    return {
        "model": "lab-model",
        "max_tokens": 100,
        "stream": stream,
        "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}],
    }


async def test_the_labs_log_and_the_relays_observation_agree() -> None:
    async with (
        LabProvider(api_keys=[KEY]) as lab,
        Relay(Upstreams.same(Upstream(lab.base_url, ProviderKey(KEY)))) as relay,
        httpx2.AsyncClient(trust_env=False, timeout=20) as http,
    ):
        sock, port = listener()
        await relay.open_sandbox(SANDBOX, sock, container_pid=None)
        relay.register_slot(SANDBOX, SLOT, SECRET, uid=None)
        relay.begin_activation(SANDBOX, SLOT, ACTIVATION, None)
        url = f"http://127.0.0.1:{port}/v1/messages?beta=true"
        texts = []
        for stream in (True, False):
            response = await http.post(
                url, json=request("[[lab:say grüße 😀]] hello", stream=stream), headers={"x-api-key": SECRET}
            )
            assert response.status_code == 200
            texts.append(response.content)
        refused = await http.post(
            url, json=request("[[lab:retry-after=7]] x", stream=True), headers={"x-api-key": SECRET}
        )
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
        seen = await relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        rows = lab.log.rows()
        assert [row["key_sha256"] for row in rows] == [hashlib.sha256(KEY.encode()).hexdigest()] * 3
        assert [row["response_sha256"] for row in rows[:2]] == [hashlib.sha256(text).hexdigest() for text in texts]
        assert seen.delivered_text_sha256 == (hashlib.sha256("grüße 😀".encode()).hexdigest(),) * 2
        assert seen.statuses == ((200, 2), (429, 1))
