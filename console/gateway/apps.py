from django.apps import AppConfig


class GatewayConfig(AppConfig):
    name = "console.gateway"
    label = "gateway"

    def ready(self) -> None:
        from console.gateway import publish  # noqa: F401 (connects its receivers)
