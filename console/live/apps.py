from django.apps import AppConfig


class LiveConfig(AppConfig):
    name = "console.live"
    label = "live"

    def ready(self) -> None:
        from console.live import publish  # noqa: F401 (connects its receivers)
