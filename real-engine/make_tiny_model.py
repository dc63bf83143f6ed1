#!/usr/bin/env python3
"""Writes a tiny random Qwen3 model with tokenizer and chat template.

    make_tiny_model.py OUT_DIR

The model (about 3 million parameters) knows nothing, but it behaves: its greedy
output is a run of varied words that depends on the whole prompt, and it never
stops on its own.  Only tokens that look like lower-case words have a chance of
being sampled; the others, and the end-of-text token above all, sit far below them,
yet can be forced by a grammar or by logit_bias.  The result is the same on every
machine: the text the tokenizer is trained on and the random seed are fixed.
"""

import importlib.metadata
import json
import os
import re
import sys

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

SEED = 20240607
VOCAB = 2048
HIDDEN = 256
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
EOS = 2
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\ntools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content if m.content is string else (m.content | default('', true) | tojson) }}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def training_text() -> list[str]:
    """English prose that every installation has: the readme of pinned packages."""
    texts = []
    for name in (
        "fastapi",
        "openai",
        "anthropic",
        "httpx",
        "typer",
        "uvicorn",
        "transformers",
        "torch",
        "aiohttp",
        "pydantic",
        "tokenizers",
        "attrs",
    ):
        text = importlib.metadata.metadata(name).get_payload() or ""
        texts.extend(line for line in text.splitlines() if line.strip())
    return texts


def make_tokenizer() -> PreTrainedTokenizerFast:
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        training_text(),
        trainers.BpeTrainer(
            vocab_size=VOCAB,
            special_tokens=SPECIAL,
            show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        ),
    )
    assert tok.get_vocab_size() == VOCAB, tok.get_vocab_size()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tok, eos_token=SPECIAL[EOS], pad_token=SPECIAL[0], clean_up_tokenization_spaces=False
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=32768,
        rope_theta=1e6,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=EOS,
        pad_token_id=0,
        dtype="float32",
    )
    gen = torch.Generator().manual_seed(SEED)
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2:
                scale = 1.0 if "embed_tokens" in name else 2.0 / p.shape[1] ** 0.5
                p.copy_(torch.randn(p.shape, generator=gen) * scale)
            else:
                # A larger query norm keeps attention from averaging a long prompt away.
                p.fill_(3.0 if "q_norm" in name else 1.0)
        # Channel 0 carries a constant that no layer reads or writes, so that the head
        # can hold a fixed bias per token: none for words, a negative one for the rest
        # and the most negative one for the special tokens.
        emb, head = model.model.embed_tokens.weight, model.lm_head.weight
        emb[:, 0] = 16
        for layer in model.model.layers:
            attn, mlp = layer.self_attn, layer.mlp
            for linear in (attn.q_proj, attn.k_proj, attn.v_proj, mlp.gate_proj, mlp.up_proj):
                linear.weight[:, 0] = 0
            attn.o_proj.weight[0] = 0
            mlp.down_proj.weight[0] = 0
        head.mul_(1.25)
        head[:, 0] = 0
        for i, piece in enumerate(tokenizer.convert_ids_to_tokens(range(VOCAB))):
            if i < len(SPECIAL):
                head[i] = 0
                head[i, 0] = -30
            elif not re.fullmatch(r"Ġ[a-z]{2,}", piece):
                head[i, 0] = -12
    return model


def main(out: str) -> None:
    logging.disable_progress_bar()
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    tokenizer.save_pretrained(out)
    model.save_pretrained(out)
    with open(os.path.join(out, "generation_config.json"), "w") as f:
        json.dump({"eos_token_id": EOS, "pad_token_id": 0, "bos_token_id": 0}, f)
    n = sum(p.numel() for p in model.parameters())
    print(f"{out}: {n / 1e6:.2f} million parameters, {len(tokenizer)} tokens")


if __name__ == "__main__":
    main(sys.argv[1])
