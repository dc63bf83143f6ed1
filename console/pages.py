"""Django for the web process: each request in one thread from end to end."""

from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.base import BaseHandler
from django.http import FileResponse, HttpRequest
from django.http.response import HttpResponseBase


class PagesHandler(ASGIHandler):
    """Django's own ASGI handler goes between event loop and thread twice for every middleware, all of which are
    synchronous here. This one builds them as one synchronous chain and goes once."""

    def __init__(self) -> None:
        BaseHandler.__init__(self)
        self.load_middleware(is_async=False)

    async def run_get_response(self, request: HttpRequest) -> HttpResponseBase:
        response: Any = await sync_to_async(self.get_response)(request)
        response._handler_class = self.__class__
        if isinstance(response, FileResponse):
            response.block_size = self.chunk_size
        return response  # type: ignore[no-any-return]
