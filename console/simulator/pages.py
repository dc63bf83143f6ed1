"""The routes of a vLLM server that neither generate nor probe: cards, documents, tokens, embeddings."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from . import bodies, messages
from .arguments import Arguments
from .bodies import ServerFacts
from .loglines import VERSION
from .refusals import Refused, error_json, invalid, missing
from .text import Detokenizer, tokenize
from .wire import HttpRequest, Reply

Handler = Callable[[HttpRequest, Reply], None]
_NOT_SIMULATED = ("/v1/chat/completions/batch", "/generative_scoring", "/scale_elastic_ep", "/is_scaling_elastic_ep")


class Pages:
    def __init__(self, arguments: Arguments, facts: ServerFacts) -> None:
        self._arguments = arguments
        self._facts = facts
        self._detokenizer = Detokenizer()
        self._models_created = int(time.time())

    def routes(self) -> dict[str, dict[str, Handler]]:
        routes: dict[str, dict[str, Handler]] = {
            "/version": {"GET": lambda _, reply: reply.json(200, {"version": VERSION})},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/kv_event_sources": {"GET": lambda _, reply: reply.json(200, {})},
            "/docs": {"GET": self._docs},
            "/redoc": {"GET": self._docs},
        }
        routes |= {path: {"POST": self._not_simulated} for path in _NOT_SIMULATED}
        if self._facts.adapters.may_change:
            routes |= {
                "/v1/load_lora_adapter": {"POST": self._changes_adapters(self._facts.adapters.load)},
                "/v1/unload_lora_adapter": {"POST": self._changes_adapters(self._facts.adapters.unload)},
            }
        if self._arguments.pooling:
            return routes | {"/v1/embeddings": {"POST": self._embeddings}}
        return routes | {
            "/v1/messages/count_tokens": {"POST": self._count_tokens},
            "/v1/responses/{response_id}": {"GET": self._no_response},
            "/v1/responses/{response_id}/cancel": {"POST": self._no_response},
        }

    def model_list(self) -> dict[str, Any]:
        cards = [self._model_card(name) for name in self._facts.names]
        for adapter, parent in self._facts.adapters.parents():
            of_adapter = {"root": adapter.path, "parent": parent, "max_model_len": None}
            cards.append(self._model_card(adapter.name) | of_adapter)
        return {"object": "list", "data": cards}

    def _changes_adapters(self, change: Callable[[dict[str, Any]], str]) -> Handler:
        def handler(request: HttpRequest, reply: Reply) -> None:
            try:
                reply.full(200, change(bodies.parse_json(request)).encode(), "")
            except Refused as refusal:
                reply.json(refusal.code, refusal.as_json())

        return handler

    def _model_card(self, name: str) -> dict[str, Any]:
        permission = {
            "id": f"modelperm-{uuid4().hex[:16]}",
            "object": "model_permission",
            "created": self._models_created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "id": name,
            "object": "model",
            "created": self._models_created,
            "owned_by": "vllm",
            "root": self._arguments.model,
            "parent": None,
            "max_model_len": self._facts.max_model_len,
            "permission": [permission],
        }

    def _docs(self, _: HttpRequest, reply: Reply) -> None:
        reply.full(200, b"<!DOCTYPE html><title>vLLM API</title>", "text/html; charset=utf-8")

    def _not_simulated(self, request: HttpRequest, reply: Reply) -> None:
        text = f"{request.path} is not simulated"
        reply.json(501, error_json(text, "NotImplementedError", None, 501))

    # --- tokens

    def _tokenize(self, request: HttpRequest, reply: Reply) -> None:
        def answer() -> dict[str, Any]:
            body = bodies.parse_json(request)
            if "messages" in body:
                text = bodies.render(body, self._facts)
            elif isinstance(body.get("prompt"), str):
                text = body["prompt"]
            else:
                raise missing("prompt", body)
            strings = self._detokenizer.remember(text)
            return {
                "count": len(strings),
                "max_model_len": self._facts.max_model_len,
                "tokens": tokenize(text),
                "token_strs": strings if body.get("return_token_strs") else None,
            }

        self._answer_or_refuse(reply, answer)

    def _detokenize(self, request: HttpRequest, reply: Reply) -> None:
        def answer() -> dict[str, Any]:
            tokens = bodies.parse_json(request).get("tokens")
            if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
                raise invalid("tokens", "Input should be a valid list", "list_type", tokens)
            return {"prompt": self._detokenizer.text(tokens)}

        self._answer_or_refuse(reply, answer)

    def _count_tokens(self, request: HttpRequest, reply: Reply) -> None:
        def answer() -> dict[str, Any]:
            body = bodies.parse_json(request)
            count = len(messages.read({"max_tokens": 1} | body, self._facts).prompts[0])
            return {"input_tokens": count, "context_management": {"original_input_tokens": count}}

        self._answer_or_refuse(reply, answer)

    def _embeddings(self, request: HttpRequest, reply: Reply) -> None:
        self._answer_or_refuse(reply, lambda: bodies.embeddings(bodies.parse_json(request), self._facts))

    def _no_response(self, request: HttpRequest, reply: Reply) -> None:
        response_id = request.path.rpartition("/responses/")[2].split("/")[0]
        text = f"Response with id '{response_id}' not found."
        reply.json(404, error_json(text, "invalid_request_error", "response_id", 404))

    def _answer_or_refuse(self, reply: Reply, answer: Callable[[], dict[str, Any]]) -> None:
        try:
            reply.json(200, answer())
        except Refused as refusal:
            reply.json(refusal.code, refusal.as_json())
