"""`path("api/", include("console.api.urls"))`: the operations, their description, and JSON for everything else."""

from django.urls import path, re_path

from console.api.api import api
from console.api.edge import speaking_json, unknown_path
from console.api.join import join

app_name = "api"
patterns, _, _ = api.urls
for pattern in patterns:
    pattern.callback = speaking_json(pattern.callback)  # type: ignore[arg-type]

urlpatterns = [path("", unknown_path), path("join", join, name="join"), *patterns, re_path("", unknown_path)]
