"""`{% icon "server" %}`: an outline icon of @tabler/icons, inlined, read once."""

import re
from functools import cache

from django import template
from django.conf import settings
from django.utils.safestring import SafeString, mark_safe

register = template.Library()


@cache
def _svg(name: str) -> str:
    drawing = (settings.NODE_MODULES / "@tabler/icons/icons/outline" / f"{name}.svg").read_text()
    drawing = re.sub(r'\s+class="[^"]*"', "", drawing[drawing.index("<svg") :])
    return drawing.replace("<svg", '<svg class="icon" aria-hidden="true" focusable="false"', 1).replace("\n", "")


@register.simple_tag
def icon(name: str) -> SafeString:
    return mark_safe(_svg(name))  # from our own package folder, by a name that stands in a template
