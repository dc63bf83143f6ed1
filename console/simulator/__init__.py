"""A simulated engine: looks like `vllm serve` from outside, computes nothing.

    python -m console.simulator serve MODEL [vLLM's arguments]

It takes vLLM's command line and environment, prints vLLM's log lines in vLLM's order, serves the same HTTP routes and
`/metrics`, and behaves as vLLM with NIXL does under signals and under good, stale and wrong hand-offs. It imports
nothing of ours, so that it can stand on any host.

**Time** comes from a step model (`steps.py`): a step lasts

    STEP_MS + PROMPT_TOKEN_MS * prompt tokens + STREAM_MS * running streams + CONTEXT_TOKEN_MS * tokens of context

and takes at most `--max-num-batched-tokens` tokens, so a long prompt stalls the streams of a plain server and not
those of a decode server, whose prompts arrive as KV over the side channel (`handoff.py`).

**Text** is a function of the prompt (`text.py`): the same on a plain server, on a decode server that received the KV
and on one that computed it again; another text when the KV it read was not that of the prompt. One token is four
characters. An answer without a limit ends by itself after SIMULATOR_ANSWER_TOKENS.

**Environment** of vLLM: VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT, VLLM_API_KEY, VLLM_HTTP_TIMEOUT_KEEP_ALIVE,
VLLM_KEEP_ALIVE_ON_ENGINE_DEATH, VLLM_LOG_STATS_INTERVAL, VLLM_SERVER_DEV_MODE. Of the simulator, SIMULATOR_ before each
of these, documented at its field in `settings.py`: STEP_MS, PROMPT_TOKEN_MS, STREAM_MS, CONTEXT_TOKEN_MS, SPEED,
KV_TOKENS, KV_BYTES_PER_TOKEN, KV_GBPS, HANDSHAKE_MS, HANDSHAKE_TIMEOUT_S, START_S, STOP_S, WATCHDOG_S, ANSWER_TOKENS,
MODEL_MAX_LEN, PROCESSES, CONTROL, FAULTS. With SIMULATOR_PROCESSES=2 the engine is a child process of the HTTP server,
as vLLM's EngineCore is: it survives a SIGKILL of its parent and keeps the side-channel port.

**Faults** (`faults.py`) are set at the start with SIMULATOR_FAULTS (JSON) and, with SIMULATOR_CONTROL=1, while running:
`POST /simulator/faults` merges, `GET` shows, `DELETE` clears; `GET /simulator/requests` lists what was received and
`DELETE` forgets it.
"""
