from django.apps import AppConfig


class DemoConfig(AppConfig):
    """A whole Switchyard on this machine: `manage.py up` for use, `manage.py demo` to look around."""

    name = "console.demo"
    label = "demo"
