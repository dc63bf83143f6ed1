"""The data plane: an OpenAI-compatible streaming router for split and plain vLLM servers.

It knows nothing of Django, databases or brokers, so it can be read, tested and measured alone. What it serves is an
immutable `routing.table.Table`, swapped whole; what it saw of each request is one `routing.record.Record`.
"""
