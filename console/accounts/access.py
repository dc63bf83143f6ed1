"""Who acts in a request, and whether that person may: the decorator that pages put over their views."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import resolve_url
from django_htmx.http import HttpResponseClientRedirect

from console.accounts.audit import Actor, person
from console.accounts.models import Role, User

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponseBase]

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOG_IN_AGAIN = "You are not logged in, or your login has ended. Log in and try again; nothing was changed."


def actor_of(request: HttpRequest) -> Actor:
    """The logged-in person as the audit trail names them. Raises PermissionDenied when nobody is logged in."""
    user = request.user
    if not isinstance(user, User):
        raise PermissionDenied(LOG_IN_AGAIN)
    return person(user)


def needs(role: Role) -> Callable[[View[P]], View[P]]:
    """Lets only people with at least `role` reach a view.

    Without a login a page sends to the login form and back; a change is refused with 403, because coming back from the
    form would open the address of a change as if it were a page. With too low a role: PermissionDenied (403).
    """

    def decorate(view: View[P]) -> View[P]:
        @wraps(view)
        def checked(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            if not request.user.is_authenticated:
                return ask_for_login(request)
            if not actor_of(request).can(role):
                raise PermissionDenied(refusal(role))
            return view(request, *args, **kwargs)

        return checked

    return decorate


def refusal(role: Role) -> str:
    return f"This needs the role {role.label.lower()}. Ask an admin to change your role, or someone who has it."


def ask_for_login(request: HttpRequest) -> HttpResponse:
    if request.headers.get("HX-Request") == "true":
        return _ask_whole_page_for_login(request)
    if request.method not in SAFE_METHODS:
        raise PermissionDenied(LOG_IN_AGAIN)
    return redirect_to_login(request.get_full_path())


def _ask_whole_page_for_login(request: HttpRequest) -> HttpResponse:
    """A redirect would put the login form into a region of the page; htmx takes the whole page there instead."""
    page = request.htmx.current_url_abs_path if hasattr(request, "htmx") else None
    query = urlencode({"next": page or "/"})
    return HttpResponseClientRedirect(f"{resolve_url(settings.LOGIN_URL)}?{query}")
