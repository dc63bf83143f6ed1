"""Requests with pictures that a server asked directly and a split deployment must answer alike."""

from tests.real_engine.cases import (
    CHAT,
    LONG,
    MESSAGES,
    ONE_SERVER,
    REFUSED,
    RESPONSES,
    SAMPLED,
    SCHEMA,
    TOOLS,
    WITH_USAGE,
    Case,
    Json,
    both_ways,
    chat,
    response,
    says,
    twice,
)
from tests.real_engine.pictures import JPEG, data_url, png

ONE, OTHER, LAST = (data_url(png(seed)) for seed in (1, 2, 3))
BASE64 = ONE.partition(",")[2]
UNREADABLE = "data:image/png;base64,AAAA"


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def picture(url: str, **more: object) -> Json:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def named(url: str | None) -> Json:
    """With a name of the client's own, by which the picture may be left out later."""
    return {"type": "image_url", "image_url": None if url is None else {"url": url}, "uuid": "the tank"}


def asks(*parts: Json) -> list[Json]:
    return [{"role": "user", "content": list(parts)}]


WHAT = asks(picture(ONE), text("What is it?"))
INPUT = [{"role": "user", "content": [{"type": "input_image", "image_url": ONE, "detail": "auto"}]}]


def block(data: str) -> Json:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}

SEEN = [
    *both_ways("a picture", CHAT, chat(WHAT)),
    *both_ways("another picture with the same text", CHAT, chat(asks(picture(OTHER), text("What is it?")))),
    Case("a picture after the text", CHAT, chat(asks(text("What is it?"), picture(ONE)))),
    Case("nothing but a picture", CHAT, chat(asks(picture(ONE)))),
    Case("a jpeg", CHAT, chat(asks(picture(data_url(JPEG, "jpeg")), text("What is it?")))),
    Case("two pictures", CHAT, chat(asks(picture(ONE), text("or"), picture(OTHER)))),
    Case("two pictures the other way round", CHAT, chat(asks(picture(OTHER), text("or"), picture(ONE)))),
    Case("the same picture twice in one question", CHAT, chat(asks(picture(ONE), text("or"), picture(ONE)))),
    *twice("a picture and a long text", CHAT, chat(asks(picture(LAST), text(LONG)), **WITH_USAGE)),
    *twice("a long text and a picture", CHAT, chat(asks(text(f"after {LONG}"), picture(LAST)))),
    Case("a long text that is cached, another picture", CHAT, chat(asks(text(f"after {LONG}"), picture(OTHER)))),
    Case("a coarse look", CHAT, chat(asks(picture(ONE, detail="low"), text("What?")))),
    Case("a close look", CHAT, chat(asks(picture(ONE, detail="high"), text("What?")))),
    Case(
        "a picture in an earlier turn", CHAT, chat([*WHAT, {"role": "assistant", "content": "A pump."}, *says("And?")])
    ),
    Case("a picture with a name", CHAT, chat(asks(named(ONE), text("Whose?")))),
    Case("a picture by its name", CHAT, chat(asks(text("And now?"), named(None)))),
    Case("a picture with log probabilities", CHAT, chat(WHAT, logprobs=True, top_logprobs=2)),
    Case("a picture with token ids", CHAT, chat(WHAT, return_token_ids=True)),
    Case("a picture and a forced tool", CHAT, chat(WHAT, tools=TOOLS, tool_choice="required", max_tokens=60)),
    Case("a picture and a schema", CHAT, chat(WHAT, response_format=SCHEMA_FORMAT)),
    Case("a picture for one token", CHAT, chat(WHAT, max_tokens=1)),
    Case("two choices of a picture", CHAT, {"messages": WHAT, **SAMPLED, "n": 2}, ONE_SERVER),
    Case("a picture with the prompt's log probabilities", CHAT, chat(WHAT, prompt_logprobs=1), ONE_SERVER),
    Case("the word for a picture without one", CHAT, chat(says("What is <image> here?"))),
    *both_ways("a response to a picture", RESPONSES, response(input=INPUT)),
    *both_ways("a message with a picture", MESSAGES, chat(asks(block(BASE64), text("What is it?")))),
]

NOT_SEEN = [
    Case("an unreadable picture", CHAT, chat(asks(picture(UNREADABLE), text("What?"))), REFUSED),
    Case("an unreadable picture, streamed", CHAT, chat(asks(picture(UNREADABLE), text("What?")), stream=True), REFUSED),
    Case("half a picture", CHAT, chat(asks(picture(data_url(png(1)[:-40])), text("What?"))), REFUSED),
    Case("letters that are no base64", CHAT, chat(asks(picture("data:image/png;base64,!!"))), REFUSED),
    Case("a picture in a file", CHAT, chat(asks(picture("file:///etc/hostname"))), REFUSED),
    Case("an address of no kind", CHAT, chat(asks(picture("somewhere"))), REFUSED),
    Case("a look of no kind", CHAT, chat(asks(picture(ONE, detail="huge"))), REFUSED),
    Case("a name that nobody gave", CHAT, chat(asks({**named(None), "uuid": "nobody's"})), REFUSED),
    Case("too many pictures", CHAT, chat(asks(*[picture(ONE)] * 60)), REFUSED),
    Case("a sound", CHAT, chat(asks(AUDIO, text("What?"))), REFUSED),
    Case(
        "an unreadable picture in a message",
        MESSAGES,
        chat(asks(block("AAAA"))),
        REFUSED,
    ),
    Case(
        "a picture read in a way of the client's own",
        CHAT,
        chat(WHAT, mm_processor_kwargs={"do_resize": False}),
        REFUSED,
    ),
]

PICTURE_CASES = [*SEEN, *NOT_SEEN]
