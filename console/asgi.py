"""The application of the pages' process."""

import os

import django
from django.urls import get_resolver

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
django.setup()
# Imports every view now, so that the first request need not wait for it.
get_resolver().url_patterns  # noqa: B018

from console.live.application import PagesApplication  # noqa: E402 (needs Django set up)
from console.pages import PagesHandler  # noqa: E402

application = PagesApplication(PagesHandler())
