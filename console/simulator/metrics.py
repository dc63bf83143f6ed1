"""Counters, gauges and histograms with vLLM's names, labels and buckets, and their Prometheus text.

Written by hand because every generated token passes here, and because the libraries' import is most of a small process.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import TypeVar

LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
           1920.0, 7680.0)  # fmt: skip
TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
        160.0, 640.0, 2560.0)  # fmt: skip
ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
ITERATION_TOKENS = tuple(float(n) for n in (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384))
PARAMS_N = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
NIXL_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
NIXL_BYTES = tuple(float(2 ** (10 + i)) for i in range(1, 25, 2))
NIXL_DESCRIPTORS = tuple(float(n) for n in (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000))

FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")


def request_token_buckets(max_model_len: int) -> tuple[float, ...]:
    """1, 2, 5, 10, … up to the model's context length."""
    values = (float(m * 10**e) for e in range(12) for m in (1, 2, 5))
    return tuple(value for value in values if value <= max_model_len)


def number(value: float) -> str:
    return "+Inf" if value == float("inf") else repr(float(value))


def labels_text(labels: Mapping[str, str]) -> str:
    def escaped(value: str) -> str:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

    return ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())


def braced(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


class Counter:
    kind = "counter"

    def __init__(self, labels: str) -> None:
        self.labels = labels
        self.value = 0.0
        self._created = time.time()

    def add(self, amount: float = 1.0) -> None:
        self.value += amount

    def lines(self, name: str) -> Iterable[str]:
        yield f"{name}_total{braced(self.labels)} {number(self.value)}"

    def created(self, name: str) -> str:
        return f"{name}_created{braced(self.labels)} {self._created!r}"


class Gauge:
    kind = "gauge"

    def __init__(self, labels: str) -> None:
        self.labels = labels
        self.value = 0.0

    def set(self, value: float) -> None:
        self.value = value

    def lines(self, name: str) -> Iterable[str]:
        yield f"{name}{braced(self.labels)} {number(self.value)}"

    def created(self, name: str) -> str:
        return ""


class Histogram:
    kind = "histogram"

    def __init__(self, labels: str, buckets: tuple[float, ...]) -> None:
        self.labels = labels
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.sum = 0.0
        self._created = time.time()

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.buckets, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def lines(self, name: str) -> Iterable[str]:
        below = 0
        for bound, count in zip((*self.buckets, float("inf")), self.counts, strict=True):
            below += count
            yield f'{name}_bucket{{{self.labels},le="{number(bound)}"}} {number(below)}'
        yield f"{name}_count{braced(self.labels)} {number(below)}"
        yield f"{name}_sum{braced(self.labels)} {number(self.sum)}"

    def created(self, name: str) -> str:
        return f"{name}_created{braced(self.labels)} {self._created!r}"


Metric = Counter | Gauge | Histogram
M = TypeVar("M", Counter, Gauge, Histogram)


class Registry:
    """Families in the order in which they were made, each with its series."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[str, list[Metric]]] = {}

    def counter(self, name: str, about: str, labels: str) -> Counter:
        return self._add(name, about, Counter(labels))

    def gauge(self, name: str, about: str, labels: str) -> Gauge:
        return self._add(name, about, Gauge(labels))

    def histogram(self, name: str, about: str, labels: str, buckets: tuple[float, ...]) -> Histogram:
        return self._add(name, about, Histogram(labels, buckets))

    def _add(self, name: str, about: str, metric: M) -> M:
        self._families.setdefault(name, (about, []))[1].append(metric)
        return metric

    def text(self) -> str:
        lines: list[str] = []
        for name, (about, series) in self._families.items():
            shown = f"{name}_total" if series[0].kind == "counter" else name
            lines += [f"# HELP {shown} {about}", f"# TYPE {shown} {series[0].kind}"]
            for metric in series:
                lines.extend(metric.lines(name))
            if series[0].kind != "gauge":
                lines += [f"# HELP {name}_created {about}", f"# TYPE {name}_created gauge"]
                lines.extend(metric.created(name) for metric in series)
        return "\n".join(lines) + "\n"


class EngineMetrics:
    """All that vLLM's engine counts. `connector` adds the families of the NIXL connector."""

    def __init__(self, model_name: str, max_model_len: int, connector: bool) -> None:
        self.registry = Registry()
        self._labels = labels_text({"engine": "0", "model_name": model_name})
        self._request_tokens = request_token_buckets(max_model_len)
        self._add_gauges()
        self._add_counters()
        self._add_request_histograms()
        self._add_time_histograms()
        if connector:
            self._add_nixl()

    def _gauge(self, name: str, about: str, extra: str = "") -> Gauge:
        return self.registry.gauge(f"vllm:{name}", about, self._labels + extra)

    def _counter(self, name: str, about: str, extra: str = "") -> Counter:
        return self.registry.counter(f"vllm:{name}", about, self._labels + extra)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return self.registry.histogram(f"vllm:{name}", about, self._labels, buckets)

    def _add_gauges(self) -> None:
        self.running = self._gauge("num_requests_running", "Number of requests in model execution batches.")
        self.waiting = self._gauge("num_requests_waiting", "Number of requests waiting to be processed.")
        about = "Number of requests waiting to be processed, by reason."
        self.waiting_capacity = self._gauge("num_requests_waiting_by_reason", about, ',reason="capacity"')
        self.waiting_deferred = self._gauge("num_requests_waiting_by_reason", about, ',reason="deferred"')
        about = "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake."
        self._gauge("engine_sleep_state", about, ',sleep_state="awake"').set(1)
        self._gauge("engine_sleep_state", about, ',sleep_state="weights_offloaded"')
        self._gauge("engine_sleep_state", about, ',sleep_state="discard_all"')
        self.kv_usage = self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")

    def _add_counters(self) -> None:
        tokens = "number of tokens."
        self.prefix_queries = self._counter("prefix_cache_queries", f"Prefix cache queries, {tokens}")
        self.prefix_hits = self._counter("prefix_cache_hits", f"Prefix cache hits, {tokens}")
        self.external_queries = self._counter("external_prefix_cache_queries", f"External cache queries, {tokens}")
        self.external_hits = self._counter("external_prefix_cache_hits", f"External cache hits, {tokens}")
        self._counter("mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items.")
        self._counter("mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.")
        self.preemptions = self._counter("num_preemptions", "Cumulative number of preemption from the engine.")
        self.prompt_tokens = self._counter("prompt_tokens", "Number of prefill tokens processed.")
        about = "Number of prompt tokens by source."
        self.by_source = {
            source: self._counter("prompt_tokens_by_source", about, f',source="{source}"') for source in SOURCES
        }
        self.prompt_tokens_cached = self._counter("prompt_tokens_cached", "Number of cached prompt tokens.")
        self.generation_tokens = self._counter("generation_tokens", "Number of generation tokens processed.")
        self.finished = {
            reason: self._counter("request_success", "Count of finished requests.", f',finished_reason="{reason}"')
            for reason in FINISHED_REASONS
        }
        flops = "estimated by the simulator's step model, always 0."
        self._counter("estimated_flops_per_gpu", f"Floating point operations per GPU, {flops}")
        self._counter("estimated_read_bytes_per_gpu", f"Bytes read from memory per GPU, {flops}")
        self._counter("estimated_write_bytes_per_gpu", f"Bytes written to memory per GPU, {flops}")

    def _add_request_histograms(self) -> None:
        tokens = self._request_tokens
        self.request_prompt = self._histogram("request_prompt_tokens", "Number of prefill tokens processed.", tokens)
        about = "Number of generation tokens processed."
        self.request_generation = self._histogram("request_generation_tokens", about, tokens)
        about = "Histogram of number of tokens per engine_step."
        self.iteration_tokens = self._histogram("iteration_tokens_total", about, ITERATION_TOKENS)
        about = "Histogram of maximum number of requested generation tokens."
        self.max_generation = self._histogram("request_max_num_generation_tokens", about, tokens)
        self.params_n = self._histogram("request_params_n", "Histogram of the n request parameter.", PARAMS_N)
        about = "Histogram of the max_tokens request parameter."
        self.params_max = self._histogram("request_params_max_tokens", about, tokens)
        about = "Histogram of the number of times a request was preempted."
        self.request_preemptions = self._histogram("request_num_preemptions", about, PREEMPTIONS)
        about = "Histogram of new KV tokens computed during prefill (excluding cached tokens)."
        self.kv_computed = self._histogram("request_prefill_kv_computed_tokens", about, tokens)

    def _add_time_histograms(self) -> None:
        self.ttft = self._histogram("time_to_first_token_seconds", "Time to first token in seconds.", TTFT)
        self.itl = self._histogram("inter_token_latency_seconds", "Inter-token latency in seconds.", ITL)
        about = "Time per output token in seconds per request."
        self.tpot = self._histogram("request_time_per_output_token_seconds", about, ITL)
        self.e2e = self._histogram("e2e_request_latency_seconds", "E2e request latency in seconds.", LATENCY)
        self.queue = self._histogram("request_queue_time_seconds", "Time spent in WAITING phase.", LATENCY)
        self.inference = self._histogram("request_inference_time_seconds", "Time spent in RUNNING phase.", LATENCY)
        self.prefill = self._histogram("request_prefill_time_seconds", "Time spent in PREFILL phase.", LATENCY)
        self.decode = self._histogram("request_decode_time_seconds", "Time spent in DECODE phase.", LATENCY)

    def _add_nixl(self) -> None:
        about = "Duration of NIXL KV Cache transfers."
        self.xfer_time = self._histogram("nixl_xfer_time_seconds", about, NIXL_SECONDS[1:])
        self.post_time = self._histogram("nixl_post_time_seconds", "Post time of NIXL transfers.", NIXL_SECONDS)
        self.xfer_bytes = self._histogram("nixl_bytes_transferred", "Bytes per NIXL KV Cache transfer.", NIXL_BYTES)
        about = "Number of descriptors per NIXL KV Cache transfer."
        self.descriptors = self._histogram("nixl_num_descriptors", about, NIXL_DESCRIPTORS)
        about = "Number of failed NIXL KV Cache transfers, including handshakes and notifications."
        self.failed_transfers = self._counter("nixl_num_failed_transfers", about)
        about = "Number of failed NIXL KV Cache notifications."
        self.failed_notifications = self._counter("nixl_num_failed_notifications", about)
        about = "Number of requests whose KV expired before a decode server read it."
        self.kv_expired = self._counter("nixl_num_kv_expired_reqs", about)

    def describe_cache(self, facts: Mapping[str, str]) -> None:
        text = labels_text({**facts, "engine": "0"})
        self.registry.gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", text).set(1)


class HttpMetrics:
    """What the HTTP server counts, next to vLLM's own."""

    BUCKETS = (0.1, 0.5, 1.0)

    def __init__(self) -> None:
        self.registry = Registry()
        self._requests: dict[tuple[str, str, str], Counter] = {}
        self._durations: dict[tuple[str, str], Histogram] = {}
        about = "Start time of the process since unix epoch in seconds."
        self._started = self.registry.gauge("process_start_time_seconds", about, "")
        self._started.set(time.time())
        self._memory = self.registry.gauge("process_resident_memory_bytes", "Resident memory size in bytes.", "")
        self._cpu = self.registry.counter("process_cpu_seconds", "Total user and system CPU time in seconds.", "")

    def record(self, handler: str, method: str, status: int, seconds: float) -> None:
        family = f"{status // 100}xx"
        counter = self._requests.get((handler, method, family))
        if counter is None:
            labels = labels_text({"handler": handler, "method": method, "status": family})
            about = "Total number of requests by method, status and handler."
            counter = self._requests[handler, method, family] = self.registry.counter("http_requests", about, labels)
        counter.add()
        self._duration(handler, method).observe(seconds)

    def _duration(self, handler: str, method: str) -> Histogram:
        found = self._durations.get((handler, method))
        if found is None:
            labels = labels_text({"handler": handler, "method": method})
            name, about = "http_request_duration_seconds", "Latency with only few buckets by handler."
            found = self.registry.histogram(name, about, labels, self.BUCKETS)
            self._durations[handler, method] = found
        return found

    def text(self) -> str:
        self._cpu.value = time.process_time()
        self._memory.set(resident_bytes())
        return self.registry.text()


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096
