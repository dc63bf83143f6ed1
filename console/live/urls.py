from django.urls import path

from console.live.consumers import DeploymentConsumer

websocket_urlpatterns = [path("ws/deployments/<str:name>/", DeploymentConsumer.as_asgi())]
