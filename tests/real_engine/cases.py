"""The requests that a server asked directly and a split deployment must answer alike. A row more asks more."""

import json
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
TOKENS = "/inference/v1/generate"
SPLIT = "split"
ONE_SERVER = "one server"
ONE_SERVER_AFTER_PREFILL = "one server, after prefill refused it"
REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Case:
    """`goes`: the way it must take through the router, so that no case passes by never being split."""

    name: str
    path: str
    body: Json | bytes
    goes: str = SPLIT
    own_words: bool = False
    """The router refuses it itself: same status, type and place, with a message of its own."""

    @property
    def raw(self) -> bytes:
        """`model` is the one that is served, unless the case names one or sends bytes."""
        return self.body if isinstance(self.body, bytes) else json.dumps({"model": "tiny", **self.body}).encode()


def both_ways(name: str, path: str, body: Json, goes: str = SPLIT) -> list[Case]:
    """Whole and streamed."""
    return [Case(name, path, body, goes), Case(f"{name}, streamed", path, {**body, "stream": True}, goes)]


def twice(name: str, path: str, body: Json) -> list[Case]:
    return [Case(name, path, body), Case(f"{name}, again", path, body)]


def says(text: str) -> list[Json]:
    return [{"role": "user", "content": text}]


SEA = says("Tell me about the sea, please, in a few words.")
GREEDY = {"temperature": 0, "max_tokens": 12}
SAMPLED = {"temperature": 1, "seed": 5, "max_tokens": 9}
STORY = "Once upon a time there was a pump in the second tank"
LONG = " ".join(f"word{number}" for number in range(600))
HUGE = " ".join(f"word{number}" for number in range(6000))
"""More tokens than the servers take."""
VAST = " ".join(f"word{number}" for number in range(40_000))
"""More bytes than are read at once."""
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Rome"]}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": WEATHER}}]
AMOUNT = {"type": "object", "properties": {"amount": {"type": "integer", "maximum": 2**256 - 1}}}
PAY = [{"type": "function", "function": {"name": "pay", "description": "d", "parameters": AMOUNT}}]
RESPONSE_TOOLS = [{"type": "function", "name": "weather", "parameters": WEATHER}]
MESSAGE_TOOLS = [{"name": "weather", "description": "d", "input_schema": WEATHER}]
THIS_TOOL = {"type": "function", "function": {"name": "weather"}}
SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
# Whole only: in a stream the parser loses words when several tokens come at once, on one server as well.
REASONED = {"regex": "Here is my thought process: one two Here is my response: three"}
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
USAGE_EACH = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
USAGE_EACH_ONLY = {"stream": True, "stream_options": {"continuous_usage_stats": True}}


def chat(messages: object = SEA, **more: object) -> Json:
    return {"messages": messages, **GREEDY, **more}


def completion(prompt: object = STORY, **more: object) -> Json:
    return {"prompt": prompt, **GREEDY, **more}


def response(**more: object) -> Json:
    return {"input": "Say something about pumps.", "temperature": 0, "max_output_tokens": 20, **more}


def tokens(ids: object = (5, 6, 7, 8, 9), more: Json | None = None, /, **settings: object) -> Json:
    """`settings` stand in its sampling parameters, `more` beside them."""
    return {"token_ids": ids, "sampling_params": {**GREEDY, **settings}, **(more or {})}


CHATS = [
    *both_ways("chat", CHAT, chat()),
    Case("chat with usage", CHAT, chat(**WITH_USAGE)),
    Case("chat with usage in each event", CHAT, chat(**USAGE_EACH)),
    Case("chat with usage in each event but the last", CHAT, chat(**USAGE_EACH_ONLY)),
    Case("chat without a limit", CHAT, {"messages": SEA, "temperature": 0, "stop": [" a", " e"]}),
    *both_ways("chat for one token", CHAT, chat(max_tokens=1)),
    *both_ways("chat with the newer limit", CHAT, {"messages": SEA, "temperature": 0, "max_completion_tokens": 7}),
    Case("chat for one token by the newer limit", CHAT, {"messages": SEA, "max_completion_tokens": 1, "seed": 1}),
    Case("chat with both limits", CHAT, chat(max_tokens=9, max_completion_tokens=4)),
    *both_ways("sampled chat", CHAT, {"messages": SEA, **SAMPLED}),
    *both_ways("three choices", CHAT, {"messages": SEA, **SAMPLED, "n": 3}, ONE_SERVER),
    Case("chat with a floor", CHAT, chat(min_tokens=5)),
    Case("chat with an echo", CHAT, chat(echo=True), ONE_SERVER),
    *both_ways("chat with stop strings", CHAT, chat(stop=["a", "e"], max_tokens=40)),
    Case("chat that stops at its first token", CHAT, chat(logit_bias={"2": 100})),
    Case("chat that stops at its first token, streamed", CHAT, chat(logit_bias={"2": 100}, stream=True)),
    *both_ways("chat with log probabilities", CHAT, chat(logprobs=True, top_logprobs=2)),
    *both_ways("chat with log probabilities of these tokens", CHAT, chat(logprobs=True, logprob_token_ids=[5, 6])),
    Case("chat with the prompt's log probabilities", CHAT, chat(prompt_logprobs=1), ONE_SERVER),
    *both_ways("chat with token ids", CHAT, chat(return_token_ids=True)),
    *both_ways("tools", CHAT, chat(tools=TOOLS)),
    Case("tools that may not be used", CHAT, chat(tools=TOOLS, tool_choice="none")),
    *both_ways("a forced tool", CHAT, chat(tools=TOOLS, tool_choice="required", max_tokens=60)),
    *both_ways("this tool", CHAT, chat(tools=TOOLS, tool_choice=THIS_TOOL, max_tokens=60)),
    Case("a forced tool cut short", CHAT, chat(tools=TOOLS, tool_choice="required", max_tokens=3)),
    Case("a tool with a number of any size", CHAT, chat(tools=PAY)),
    Case("a chat in UTF-16", CHAT, json.dumps({"model": "tiny", **chat()}).encode("utf-16")),
    Case("reasoning", CHAT, chat(structured_outputs=REASONED, max_tokens=60)),
    Case("reasoning left out", CHAT, chat(structured_outputs=REASONED, max_tokens=60, include_reasoning=False)),
    *both_ways(
        "a schema", CHAT, chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}})
    ),
    Case("any object", CHAT, chat(response_format={"type": "json_object"}, max_tokens=30)),
    Case("one of two words", CHAT, chat(structured_outputs={"choice": ["red", "blue"]})),
    Case("fields that nobody knows", CHAT, chat(unknown={"a": [1, None]}, user="u", metadata={"a": "b"})),
    Case("any letters", CHAT, chat(says("漢字 é 🚀 \u0000 \u2028 \x7f"))),
    Case(
        "half a surrogate pair",
        CHAT,
        b'{"messages":[{"role":"user","content":"a \\ud800 b"}],"temperature":0,"max_tokens":4}',
        REFUSED,
    ),
    Case("a long chat", CHAT, chat(says(LONG), max_tokens=6)),
    Case(
        "a conversation",
        CHAT,
        chat(
            [
                {"role": "system", "content": "Be kind."},
                *SEA,
                {"role": "assistant", "content": "It is wide."},
                *says("And?"),
            ]
        ),
    ),
    Case(
        "the model's own beginning",
        CHAT,
        chat(
            [*SEA, {"role": "assistant", "content": "It is"}], add_generation_prompt=False, continue_final_message=True
        ),
    ),
    Case(
        "parts of text",
        CHAT,
        chat([{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "you"}]}]),
    ),
    Case("the model left out", CHAT, json.dumps(chat()).encode()),
    Case(
        "the same key twice",
        CHAT,
        b'{"messages":[{"role":"user","content":"hi"}],"temperature":0,"max_tokens":9,"max_tokens":3}',
    ),
    Case(
        "a number that is none",
        CHAT,
        b'{"messages":[{"role":"user","content":"hi"}],"temperature":NaN,"max_tokens":3}',
        REFUSED,
    ),
]

COMPLETION_CASES = [
    *both_ways("completion", COMPLETIONS, completion()),
    Case("completion without a limit", COMPLETIONS, {"prompt": STORY, "temperature": 0}),
    Case("completion for one token", COMPLETIONS, completion(max_tokens=1)),
    Case("completion with usage", COMPLETIONS, completion(**WITH_USAGE)),
    Case("completion with usage in each event", COMPLETIONS, completion(**USAGE_EACH)),
    *both_ways("a long prompt", COMPLETIONS, completion(LONG)),
    Case("a prompt cut to some tokens", COMPLETIONS, completion(LONG, truncate_prompt_tokens=40)),
    Case("a prompt that may be cut", COMPLETIONS, completion(truncate_prompt_tokens=-1), ONE_SERVER),
    Case("a prompt of one letter", COMPLETIONS, completion("a")),
    *both_ways("token ids", COMPLETIONS, completion([5, 6, 7, 8, 9])),
    Case("a list of one prompt", COMPLETIONS, completion(["a b c"])),
    *both_ways("two prompts", COMPLETIONS, completion(["a b c", "d e f"]), ONE_SERVER),
    Case("two prompts of token ids", COMPLETIONS, completion([[5, 6], [7, 8]]), ONE_SERVER),
    Case("an echo", COMPLETIONS, completion(echo=True)),
    Case("an echo with log probabilities", COMPLETIONS, completion(echo=True, logprobs=1), ONE_SERVER),
    *both_ways("log probabilities", COMPLETIONS, completion(logprobs=2)),
    *both_ways("log probabilities of these tokens", COMPLETIONS, completion(logprobs=1, logprob_token_ids=[5, 6])),
    Case("the prompt's log probabilities", COMPLETIONS, completion(prompt_logprobs=1), ONE_SERVER),
    Case("sampled completions", COMPLETIONS, {"prompt": STORY, **SAMPLED, "n": 2}, ONE_SERVER),
    Case("beam search", COMPLETIONS, completion(use_beam_search=True, n=2), ONE_SERVER),
    Case("penalties", COMPLETIONS, completion(presence_penalty=1, frequency_penalty=0.5, repetition_penalty=1.2)),
    Case("stop ids kept", COMPLETIONS, completion(stop=["a"], include_stop_str_in_output=True, max_tokens=40)),
    Case("a suffix", COMPLETIONS, completion(suffix="x"), REFUSED),
]

OTHER_APIS = [
    *both_ways("response", RESPONSES, response()),
    Case("response without a limit", RESPONSES, {"input": "Say it.", "temperature": 0, "logit_bias": {"2": 100}}),
    Case("response with instructions", RESPONSES, response(input=says("Hm?"), instructions="Be kind.")),
    *both_ways(
        "response with a forced tool",
        RESPONSES,
        response(tools=RESPONSE_TOOLS, tool_choice="required", max_output_tokens=60),
    ),
    *both_ways(
        "response with a schema",
        RESPONSES,
        response(text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}),
    ),
    Case("response with reasoning", RESPONSES, response(structured_outputs=REASONED, max_output_tokens=60)),
    Case("response to what may be cut", RESPONSES, response(truncation="auto"), ONE_SERVER),
    *both_ways("message", MESSAGES, chat()),
    Case("message with a system prompt", MESSAGES, chat(system="Be kind.")),
    *both_ways("message with stop strings", MESSAGES, chat(stop_sequences=["a"])),
    *both_ways(
        "message with a forced tool", MESSAGES, chat(tools=MESSAGE_TOOLS, tool_choice={"type": "any"}, max_tokens=60)
    ),
    *both_ways("message with a tool", MESSAGES, chat(tools=MESSAGE_TOOLS)),
]

IDS = list(range(5, 400))
TOKEN_CASES = [
    *both_ways("tokens", TOKENS, tokens(IDS)),
    Case("tokens with usage in each event", TOKENS, tokens(IDS, USAGE_EACH)),
    Case("tokens with the prompt's own", TOKENS, tokens(IDS, {"stream": True, "return_token_ids": True})),
    *both_ways("sampled tokens", TOKENS, tokens(**SAMPLED)),
    *both_ways("tokens with log probabilities", TOKENS, tokens(logprobs=2)),
    *both_ways("tokens up to a stop string", TOKENS, tokens(stop=["a", "e"], max_tokens=40)),
    Case("one token", TOKENS, tokens(max_tokens=1)),
    Case("tokens for whom more was asked than there is room for", TOKENS, tokens([5] * 8190)),
    Case("tokens of a choice", TOKENS, tokens(structured_outputs={"choice": ["red", "blue"]})),
    Case("tokens with the prompt's log probabilities", TOKENS, tokens(prompt_logprobs=1), ONE_SERVER),
    Case("two answers in tokens", TOKENS, tokens(temperature=1, seed=3, n=2), ONE_SERVER),
    Case("no tokens", TOKENS, tokens([]), REFUSED),
    Case("tokens without settings", TOKENS, {"token_ids": [5]}, REFUSED),
    Case("tokens with a floor over the usual limit", TOKENS, tokens(max_tokens=16, min_tokens=17), REFUSED),
    Case("more tokens than are taken", TOKENS, tokens([5] * 9000), REFUSED),
    Case("more tokens than are taken, streamed", TOKENS, tokens([5] * 9000, {"stream": True}), ONE_SERVER),
    Case("tokens that are none", TOKENS, tokens([10**6]), REFUSED),
]

NO_REGEX: Json = {"structured_outputs": {"regex": "["}}
NO_CHOICE: Json = {"structured_outputs": {"choice": []}}
NONSENSE: Json = {"type": "json_schema", "schema": {"type": "nonsense"}}
IN_STREAMS = [
    Case("no regex", CHAT, chat(**NO_REGEX), REFUSED),
    Case("no regex, streamed", CHAT, chat(stream=True, **NO_REGEX), ONE_SERVER_AFTER_PREFILL),
    Case("no regex, streamed with usage", COMPLETIONS, completion(**WITH_USAGE, **NO_REGEX), ONE_SERVER_AFTER_PREFILL),
    Case("nothing to choose from", COMPLETIONS, completion(**NO_CHOICE), REFUSED),
    Case("nothing to choose from, streamed", CHAT, chat(stream=True, **NO_CHOICE), ONE_SERVER_AFTER_PREFILL),
    Case("token ids that are none", COMPLETIONS, completion([5, 10**6]), REFUSED),
    Case(
        "token ids that are none, streamed", COMPLETIONS, completion([5, 10**6], stream=True), ONE_SERVER_AFTER_PREFILL
    ),
    Case(
        "a bias towards no token, streamed", CHAT, chat(stream=True, logit_bias={"9999": 1}), ONE_SERVER_AFTER_PREFILL
    ),
    Case("no allowed tokens, streamed", CHAT, chat(stream="true", allowed_token_ids=[]), ONE_SERVER_AFTER_PREFILL),
    Case("a negative temperature, streamed", CHAT, chat(stream=True, temperature=-1), REFUSED),
    Case("no message by its schema", MESSAGES, chat(output_config={"format": NONSENSE}), REFUSED),
    Case(
        "no message by its schema, streamed",
        MESSAGES,
        chat(stream=True, output_config={"format": NONSENSE}),
        ONE_SERVER_AFTER_PREFILL,
    ),
]
"""What is refused inside a stream, where one is asked for."""

REFUSALS = [
    Case("too long a prompt", COMPLETIONS, completion(HUGE), REFUSED),
    Case("too long a prompt, streamed", COMPLETIONS, completion(HUGE, stream=True), REFUSED),
    Case("too long a chat", CHAT, chat(says(HUGE)), REFUSED),
    Case("too long a chat without a limit", CHAT, {"messages": says(HUGE)}, REFUSED),
    Case("too many token ids", COMPLETIONS, completion([5] * 8300), REFUSED),
    Case("no room for the answer", COMPLETIONS, completion([5] * 8190), REFUSED),
    Case("too long a response", RESPONSES, response(input=HUGE), REFUSED),
    Case("too long a message", MESSAGES, chat(says(HUGE)), REFUSED),
    Case("a limit over the context", CHAT, chat(max_tokens=9000), REFUSED),
    Case("a limit of nothing", CHAT, chat(max_tokens=0), REFUSED),
    Case("a floor over the limit", CHAT, chat(min_tokens=50), REFUSED),
    Case("more alternatives than allowed", CHAT, chat(logprobs=True, top_logprobs=21), REFUSED),
    Case("more log probabilities than allowed", COMPLETIONS, completion(logprobs=21), REFUSED),
    Case("a negative temperature", CHAT, chat(temperature=-1), REFUSED),
    Case("a floor over the limit, streamed", CHAT, chat(min_tokens=50, stream=True), REFUSED),
    Case("too many log probabilities", CHAT, chat(logprobs=True, top_logprobs=99), REFUSED),
    Case("the likeliest without log probabilities", CHAT, chat(top_logprobs=2), REFUSED),
    Case("log probabilities of these tokens alone", CHAT, chat(logprob_token_ids=[5]), REFUSED),
    Case("a stop of no kind", CHAT, chat(stop=5), REFUSED),
    Case("a stop at a token that is none", COMPLETIONS, completion(stop_token_ids=[10**9]), REFUSED),
    Case("usage, maybe", CHAT, chat(stream=True, stream_options={"include_usage": "maybe"}), REFUSED),
    Case("usage of nothing", COMPLETIONS, completion(stream=True, stream_options={"include_usage": ""}), REFUSED),
    Case("a cut to more than there is room for", CHAT, chat(truncate_prompt_tokens=100_000), REFUSED),
    Case("token ids as fractions, streamed", COMPLETIONS, completion([5.0, 6], stream=True), ONE_SERVER),
    Case("usage of no stream", CHAT, chat(stream_options={"include_usage": True}), REFUSED),
    Case("two choices without sampling", CHAT, chat(n=2), REFUSED),
    Case("no choices", CHAT, chat(n=0), REFUSED),
    Case("no messages", CHAT, chat([]), REFUSED),
    Case("messages left out", CHAT, {"temperature": 0}, REFUSED),
    Case("a message of no one", CHAT, chat([{"content": "x"}]), REFUSED),
    Case("messages that are none", CHAT, chat("hello"), REFUSED),
    Case(
        "a schema that is none",
        CHAT,
        chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}),
        REFUSED,
    ),
    Case(
        "a tool that is not there",
        CHAT,
        chat(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "z"}}),
        REFUSED,
    ),
    Case("a forced tool of none", CHAT, chat(tool_choice="required"), REFUSED),
    Case("an empty prompt", COMPLETIONS, completion(""), REFUSED),
    Case("no prompt", COMPLETIONS, dict(GREEDY), REFUSED),
    Case("a prompt of the wrong type", COMPLETIONS, completion({"a": 1}), REFUSED),
    Case("a limit of the wrong type", COMPLETIONS, completion(max_tokens="many"), REFUSED),
    Case("a stream of the wrong type", COMPLETIONS, completion(stream=3), REFUSED),
    Case("numbers as text", COMPLETIONS, completion(max_tokens="3", stream="true")),
    Case("an empty response", RESPONSES, {}, REFUSED),
    Case(
        "thoughts longer than the limit",
        MESSAGES,
        chat(thinking={"type": "enabled", "budget_tokens": 2000}, max_tokens=1500),
        REFUSED,
    ),
    Case("a message without a limit", MESSAGES, {"messages": SEA}, REFUSED),
    Case("another model", CHAT, chat(model="other"), REFUSED, own_words=True),
    Case("a model that is no name", CHAT, chat(model=5), REFUSED, own_words=True),
    Case(
        "a large body cut off",
        CHAT,
        json.dumps({"model": "tiny", **chat(says(VAST))})[:-1].encode(),
        REFUSED,
        own_words=True,
    ),
    Case(
        "a large body with a quote too much",
        CHAT,
        json.dumps(chat(says(VAST))).replace("word9 ", 'wor"d9 ').encode(),
        REFUSED,
        own_words=True,
    ),
    Case(
        "a large body with a wrong escape",
        CHAT,
        json.dumps(chat(says(VAST))).replace("word9 ", "wor\\d9 ").encode(),
        REFUSED,
    ),
    Case("half an object", CHAT, b'{"messages": [', REFUSED, own_words=True),
    Case("a list", CHAT, b"[1, 2]", REFUSED, own_words=True),
    Case("nothing", CHAT, b"", REFUSED, own_words=True),
    Case(
        "letters that are none",
        CHAT,
        b'{"messages":[{"role":"user","content":"\xff\xfe"}],"max_tokens":3}',
        REFUSED,
        own_words=True,
    ),
]

CACHED = [
    *twice("a cached chat", CHAT, chat(says(f"chat {LONG}"))),
    *twice("a cached chat, streamed", CHAT, chat(says(f"streamed {LONG}"), **WITH_USAGE)),
    *twice("a cached completion", COMPLETIONS, completion(f"completion {LONG}")),
    *twice("a cached completion, streamed", COMPLETIONS, completion(f"streamed {LONG}", **WITH_USAGE)),
    *twice("a cached response", RESPONSES, response(input=f"response {LONG}")),
    *twice("a cached response, streamed", RESPONSES, response(input=f"streamed response {LONG}", stream=True)),
    *twice("a cached message", MESSAGES, chat(says(f"message {LONG}"))),
    *twice("a cached message, streamed", MESSAGES, chat(says(f"streamed message {LONG}"), stream=True)),
]
"""Prompts of many blocks, whose second answer tells how much of them was cached at the first."""

CASES = [*CHATS, *COMPLETION_CASES, *OTHER_APIS, *TOKEN_CASES, *CACHED, *IN_STREAMS, *REFUSALS]
