from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [
    path("api/", include("console.api.urls")),
    path("", include("console.accounts.urls")),
    path("", include("console.traffic.urls")),
    path("", include("console.fleet.urls")),
]
