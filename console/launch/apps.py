from django.apps import AppConfig


class LaunchConfig(AppConfig):
    name = "console.launch"
    label = "launch"
