"""What people type when they log in, and for tokens and keys."""

from typing import Any

from django import forms
from django.contrib.auth.forms import AuthenticationForm

from console.accounts.models import Role
from console.fleet.forms import CONTROL, PageForm
from console.fleet.models import Deployment

LIVES = [("30", "30 days"), ("90", "90 days"), ("365", "a year"), ("", "no end")]


class LogInForm(AuthenticationForm):
    error_messages = {
        "invalid_login": "Name and password do not match. Both are case-sensitive.",
        "inactive": "This account is switched off. Ask an admin.",
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget.attrs["class"] = CONTROL


class _SecretForm(PageForm):
    name = forms.CharField(max_length=80, help_text="What uses it, so that you can tell it from others.")
    expires_in_days = forms.TypedChoiceField(
        choices=LIVES, coerce=int, empty_value=None, required=False, initial="90", label="Works for"
    )


class TokenForm(_SecretForm):
    scope = forms.ChoiceField(
        choices=Role.choices, initial=Role.VIEWER, label="May do", help_text="At most what you may do yourself."
    )


class KeyForm(_SecretForm):
    deployment = forms.ModelChoiceField(queryset=Deployment.objects.all(), empty_label=None, to_field_name="name")
