#!/usr/bin/env python3
"""Writes the tiny model with eyes: a LLaVA model with tokenizer, chat template and image processor.

    make_tiny_vision_model.py OUT_DIR

Its text weights are those of `make_tiny_model`, so it says the same where there is no picture. What it says of a
picture depends on the picture, of which it makes 144 tokens, more than a KV block of the CPU build holds. The result
is the same on every machine.
"""

import json
import os
import sys

import make_tiny_model as tiny  # before the others: it sets up what they read when they load
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

SIDE, PATCH = 96, 8
"""Of a picture as the model sees it, and of the part of it that becomes a token, in pixels."""
PICTURE_TOKENS = (SIDE // PATCH) ** 2
IMAGE, IMAGE_ID = "<image>", tiny.VOCAB
TEXT_ONLY = "{{ m.content if m.content is string else (m.content | default('', true) | tojson) }}"
WITH_PICTURES = (
    "{% if m.content is string %}{{ m.content }}{% elif m.content %}{% for part in m.content %}"
    "{{ '" + IMAGE + "' if part.type == 'image' else part.text }}{% endfor %}{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = tiny.make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE]})
    assert tokenizer.convert_tokens_to_ids(IMAGE) == IMAGE_ID
    assert TEXT_ONLY in tiny.CHAT_TEMPLATE
    tokenizer.chat_template = tiny.CHAT_TEMPLATE.replace(TEXT_ONLY, WITH_PICTURES)
    return tokenizer


def make_processor(tokenizer: PreTrainedTokenizerFast) -> LlavaProcessor:
    square = {"height": SIDE, "width": SIDE}
    return LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=square),
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template,
        image_token=IMAGE,
    )


def make_model() -> LlavaForConditionalGeneration:
    text = tiny.make_model(tiny.make_tokenizer())
    vision = CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=PATCH,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config={**text.config.to_dict(), "architectures": ["Qwen3ForCausalLM"], "vocab_size": tiny.VOCAB + 1},
        image_token_index=IMAGE_ID,
        image_seq_length=PICTURE_TOKENS,
        vision_feature_layer=-1,
        dtype="float32",
    )
    model = LlavaForConditionalGeneration(config)
    with torch.no_grad():
        fill_eyes(model)
        fill_text(model, dict(text.named_parameters()))
    return model


def fill_eyes(model: LlavaForConditionalGeneration) -> None:
    gen = torch.Generator().manual_seed(tiny.SEED)
    for name, p in model.named_parameters():
        if p.dim() == 1:
            p.fill_(0.0 if name.endswith("bias") else 1.0)
        else:
            scale = 2.0 if "position_embedding" in name else 2.0 / p[0].numel() ** 0.5
            p.copy_(torch.randn(p.shape, generator=gen) * scale)
    # The constant that every token carries in channel 0 of the text model.
    last = model.model.multi_modal_projector.linear_2
    last.weight.div_(16)  # what it sees is then as large as what it reads
    last.weight[0] = 0
    last.bias[0] = 16


def fill_text(model: LlavaForConditionalGeneration, text: dict[str, torch.Tensor]) -> None:
    """The text model's weights, and a row more for the token that stands for a picture, which is never said."""
    for name, p in model.model.language_model.named_parameters():
        given = text[f"model.{name}"]
        p[: len(given)] = given
    head = model.lm_head.weight
    head[:IMAGE_ID] = text["lm_head.weight"]
    head[IMAGE_ID] = head[0]


def save_weights(model: LlavaForConditionalGeneration, out: str) -> None:
    """With the names that published models have and the engine looks for."""
    model.save_pretrained(out)
    file = os.path.join(out, "model.safetensors")
    weights = {name.replace("vision_tower.", "vision_tower.vision_model."): w for name, w in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})


def main(out: str) -> None:
    logging.disable_progress_bar()
    model = make_model()
    make_processor(make_tokenizer()).save_pretrained(out)
    save_weights(model, out)
    with open(os.path.join(out, "generation_config.json"), "w") as f:
        json.dump({"eos_token_id": tiny.EOS, "pad_token_id": 0, "bos_token_id": 0}, f)
    n = sum(p.numel() for p in model.parameters())
    print(f"{out}: {n / 1e6:.2f} million parameters, {PICTURE_TOKENS} tokens a picture")


if __name__ == "__main__":
    main(sys.argv[1])
