"""Reads the fields of a body as vLLM's models do: what can stand for a number or a truth value is taken for one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .refusals import Fault, Invalid, Refused, fault

Faults = list[Fault]
Reader = Callable[[str, Any, Faults], Any]
"""Takes where the value stands; returns what it is taken for, or adds why it cannot be taken."""

_WHOLE = re.compile(r"\s*([+-]?\d+)(?:\.0*)?\s*")
_TRUTHS = dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True) | dict.fromkeys(
    ("0", "off", "f", "false", "n", "no"), False
)
_LARGEST = 2**63


def integer(where: str, value: Any, faults: Faults) -> Any:
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str) and (found := _WHOLE.fullmatch(value)):
        return int(found[1])
    if isinstance(value, float) and abs(value) >= _LARGEST:
        what = "Unable to parse input string as an integer, exceeded maximum size"
        faults.append(fault(where, what, "int_parsing_size", value))
    elif isinstance(value, float) and not value.is_integer():
        what = "Input should be a valid integer, got a number with a fractional part"
        faults.append(fault(where, what, "int_from_float", value))
    elif isinstance(value, float):
        return int(value)
    elif isinstance(value, str):
        what = "Input should be a valid integer, unable to parse string as an integer"
        faults.append(fault(where, what, "int_parsing", value))
    else:
        faults.append(fault(where, "Input should be a valid integer", "int_type", value))
    return None


def number(where: str, value: Any, faults: Faults) -> Any:
    if isinstance(value, int | float):
        return float(value)
    if not isinstance(value, str):
        faults.append(fault(where, "Input should be a valid number", "float_type", value))
        return None
    try:
        return float(value)
    except ValueError:
        what = "Input should be a valid number, unable to parse string as a number"
        faults.append(fault(where, what, "float_parsing", value))
        return None


def flag(where: str, value: Any, faults: Faults) -> Any:
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in _TRUTHS:
        return _TRUTHS[value.lower()]
    if isinstance(value, str | int) or (isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST):
        what = "Input should be a valid boolean, unable to interpret input"
        faults.append(fault(where, what, "bool_parsing", value))
    else:
        faults.append(fault(where, "Input should be a valid boolean", "bool_type", value))
    return None


def text(where: str, value: Any, faults: Faults) -> Any:
    if not isinstance(value, str):
        faults.append(fault(where, "Input should be a valid string", "string_type", value))
    return value


def anything(where: str, value: Any, faults: Faults) -> Any:
    return value


def mapping(where: str, value: Any, faults: Faults) -> Any:
    if not isinstance(value, dict):
        faults.append(fault(where, "Input should be a valid dictionary", "dict_type", value))
    return value


def part(where: str, value: Any, faults: Faults) -> Any:
    """A model of its own within the body."""
    if not isinstance(value, dict):
        what = "Input should be a valid dictionary or object to extract fields from"
        faults.append(fault(where, what, "model_attributes_type", value))
    return value


def list_of(item: Reader) -> Reader:
    def read(where: str, value: Any, faults: Faults) -> Any:
        if not isinstance(value, list):
            faults.append(fault(where, "Input should be a valid list", "list_type", value))
            return None
        return [item(f"{where}.{index}", element, faults) for index, element in enumerate(value)]

    return read


def one_of(*readers: Reader) -> Reader:
    """The first that takes it; when none does, all of them say why."""

    def read(where: str, value: Any, faults: Faults) -> Any:
        all_found: Faults = []
        for reader in readers:
            found: Faults = []
            taken = reader(where, value, found)
            if not found:
                return taken
            all_found += found
        faults += all_found
        return None

    return read


SAMPLED: dict[str, Reader] = {
    "frequency_penalty": number,
    "max_tokens": integer,
    "max_completion_tokens": integer,
    "n": integer,
    "presence_penalty": number,
    "response_format": one_of(part, part, part),
    "seed": integer,
    "stop": one_of(text, list_of(text)),
    "stream": flag,
    "stream_options": part,
    "temperature": number,
    "top_p": number,
    "tools": list_of(part),
    "user": text,
    "use_beam_search": flag,
    "top_k": integer,
    "min_p": number,
    "repetition_penalty": number,
    "stop_token_ids": list_of(integer),
    "include_stop_str_in_output": flag,
    "ignore_eos": flag,
    "min_tokens": integer,
    "prompt_logprobs": integer,
    "return_token_ids": flag,
    "kv_transfer_params": mapping,
}
"""In the order of vLLM's models, which is the order of their faults."""
NAMED: dict[str, Reader] = {"request_id": text}
COMPLETION: dict[str, Reader] = {"model": text, "echo": flag, "logprobs": integer, **SAMPLED, **NAMED}
CHAT: dict[str, Reader] = {
    "messages": list_of(anything),
    "model": text,
    "logprobs": flag,
    "top_logprobs": integer,
    **SAMPLED,
    **NAMED,
}
RESPONSES: dict[str, Reader] = {
    **SAMPLED,
    "model": text,
    "max_output_tokens": integer,
    "top_logprobs": integer,
    **NAMED,
}
MESSAGES: dict[str, Reader] = {"model": text, "messages": list_of(anything), **SAMPLED, "stop_sequences": list_of(text)}
TOKENS: dict[str, Reader] = {
    **NAMED,
    "token_ids": list_of(integer),
    "sampling_params": mapping,
    "model": text,
    "stream": flag,
    "stream_options": part,
    "kv_transfer_params": mapping,
}
POOLING: dict[str, Reader] = {"model": text, **NAMED}

_NEVER_NULL = frozenset({"use_beam_search", "include_stop_str_in_output", "ignore_eos", "min_tokens", "request_id"})
COMPLETION_NEVER_NULL = _NEVER_NULL | {"n"}
TOKENS_NEVER_NULL = frozenset({"request_id", "token_ids", "sampling_params"})


def read(body: dict[str, Any], readers: dict[str, Reader], never_null: frozenset[str] = _NEVER_NULL) -> dict[str, Any]:
    """`body` with its fields as the engine takes them. Raises Invalid with all that is wrong."""
    faults: Faults = []
    taken = {
        name: reader(name, body[name], faults)
        for name, reader in readers.items()
        if name in body and (body[name] is not None or name in never_null)
    }
    if faults:
        raise Invalid(*faults)
    return {**body, **taken}


def check_logprobs(body: dict[str, Any], name: str) -> None:
    """What vLLM asks of `prompt_logprobs` and of `name` before it reads the fields. Raises Refused."""
    for asked in ("prompt_logprobs", name):
        value = body.get(asked)
        if value is not None and not isinstance(value, int | float):
            raise Refused(f"`{asked}` must be an integer.", param=asked, value=value)
    prompt_logprobs = body.get("prompt_logprobs")
    if prompt_logprobs is not None and body.get("stream") and (prompt_logprobs > 0 or prompt_logprobs == -1):
        raise Refused("`prompt_logprobs` are not available when `stream=True`.", param="prompt_logprobs")
    for asked in ("prompt_logprobs", name):
        value = body.get(asked)
        if value is not None and value < 0 and value != -1:
            raise Refused(f"`{asked}` must be a positive value or -1.", param=asked, value=value)
