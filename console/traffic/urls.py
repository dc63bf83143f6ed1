from django.urls import path

from console.traffic import views

urlpatterns = [
    path("requests/", views.listing, name="requests"),
    path("requests/<path:request_id>/", views.page, name="request"),
]
