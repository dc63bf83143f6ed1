from django.contrib.auth.views import LogoutView
from django.urls import path

from console.accounts import views

urlpatterns = [
    path("login/", views.LogIn.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("tokens/", views.tokens, name="tokens"),
    path("tokens/new/", views.token_new, name="token_new"),
    path("tokens/<int:token_id>/revoke/", views.token_revoke, name="token_revoke"),
    path("tokens/keys/new/", views.key_new, name="key_new"),
    path("tokens/keys/<int:key_id>/revoke/", views.key_revoke, name="key_revoke"),
    path("audit/", views.audit_list, name="audit"),
]
