"""A page for whoever opens the address of a change, or sends a form to a page: 405 alone shows an empty window."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import Resolver404, resolve

from console import answers

METHOD_NOT_ALLOWED = 405


class WrongMethod:
    """Middleware. The API answers in its own shape, regions need no page."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        if response.status_code != METHOD_NOT_ALLOWED or response.content or answers.is_region(request):
            return response
        context = {"is_change": "POST" in response["Allow"], "home": nearest_page(request.path)}
        shown = render(request, "405.html", context, status=METHOD_NOT_ALLOWED)
        shown["Allow"] = response["Allow"]
        return shown


def nearest_page(path: str) -> str:
    """`/servers/7/` for `/servers/7/start/`: the address above it that there is."""
    while path != "/":
        path = path.rstrip("/").rpartition("/")[0] + "/"
        try:
            resolve(path)
        except Resolver404:
            continue
        return path
    return "/"
