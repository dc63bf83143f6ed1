from django.apps import AppConfig


class TrafficConfig(AppConfig):
    name = "console.traffic"
    label = "traffic"
