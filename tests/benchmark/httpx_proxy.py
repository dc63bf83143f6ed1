"""A proxy for split serving as people first write it: FastAPI in front, httpx behind. What `make bench` compares with.

python -m tests.benchmark.httpx_proxy PORT PREFILL_URL DECODE_URL
"""

import sys
import uuid
from collections.abc import AsyncIterator
from typing import Any

import fastapi
import fastapi.responses
import httpx
import uvicorn

PATH = "/v1/chat/completions"


class Proxy:
    def __init__(self, prefill: str, decode: str) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self.prefill = httpx.AsyncClient(base_url=prefill, timeout=None, limits=limits)
        self.decode = httpx.AsyncClient(base_url=decode, timeout=None, limits=limits)

    async def chat(self, request: fastapi.Request) -> Any:
        body = await request.json()
        headers = {"X-Request-Id": str(uuid.uuid4())}
        handoff = await self._prefill(body, headers)
        stream = self._decode({**body, "kv_transfer_params": handoff}, headers)
        return fastapi.responses.StreamingResponse(stream, media_type="text/event-stream")

    async def _prefill(self, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        asked = {
            **body,
            "stream": False,
            "max_tokens": 1,
            "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
        }
        answer = await self.prefill.post(PATH, json=asked, headers=headers)
        answer.raise_for_status()
        handoff: dict[str, Any] = answer.json()["kv_transfer_params"]
        return handoff

    async def _decode(self, body: dict[str, Any], headers: dict[str, str]) -> AsyncIterator[bytes]:
        async with self.decode.stream("POST", PATH, json=body, headers=headers) as answer:
            answer.raise_for_status()
            async for data in answer.aiter_bytes():
                yield data


def main() -> None:
    port, prefill, decode = sys.argv[1:]
    app = fastapi.FastAPI()
    app.add_api_route(PATH, Proxy(prefill, decode).chat, methods=["POST"], response_model=None)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="error", access_log=False)


if __name__ == "__main__":
    main()
