from django.apps import AppConfig
from django.db.backends.signals import connection_created


class FleetConfig(AppConfig):
    name = "console.fleet"
    label = "fleet"

    def ready(self) -> None:
        from console.database import close_new_file_to_others

        connection_created.connect(close_new_file_to_others)
