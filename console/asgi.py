"""The application that `manage.py web` serves."""

import os

import django
from django.urls import get_resolver

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
django.setup()
# Imports every view now. With the first request it would happen beside running streams, and stall them.
get_resolver().url_patterns  # noqa: B018

from console.gateway.application import Application  # noqa: E402 (needs Django set up)
from console.pages import PagesHandler  # noqa: E402

application = Application(PagesHandler())
