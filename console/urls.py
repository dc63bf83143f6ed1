from django.urls import URLPattern, URLResolver, include, path

from console.api.edge import unknown_path

urlpatterns: list[URLPattern | URLResolver] = [
    path("api", unknown_path),
    path("api/", include("console.api.urls")),
    path("", include("console.accounts.urls")),
    path("", include("console.traffic.urls")),
    path("", include("console.fleet.urls")),
]

handler500 = "console.outages.server_error"
