"""The application that `manage.py web` serves."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
pages = get_asgi_application()

from console.gateway.application import Application  # noqa: E402 (needs Django set up)

application = Application(pages)
