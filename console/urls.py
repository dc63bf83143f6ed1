from django.conf import settings
from django.urls import URLPattern, URLResolver, include, path
from django.views.generic import RedirectView

from console.api.edge import unknown_path

urlpatterns: list[URLPattern | URLResolver] = [
    path("favicon.ico", RedirectView.as_view(url=f"{settings.STATIC_URL}icon.svg")),
    path("api", unknown_path),
    path("api/", include("console.api.urls")),
    path("", include("console.accounts.urls")),
    path("", include("console.traffic.urls")),
    path("", include("console.fleet.urls")),
]

handler500 = "console.outages.server_error"
