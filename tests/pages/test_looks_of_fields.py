"""Fields of every kind look alike."""

import pytest
from django import forms

from console.fleet.forms import PageForm

TYPED = [
    forms.TextInput,
    forms.PasswordInput,
    forms.EmailInput,
    forms.URLInput,
    forms.NumberInput,
    forms.DateInput,
    forms.DateTimeInput,
    forms.TimeInput,
    forms.SearchInput,
    forms.TelInput,
    forms.Textarea,
]


def shown(widget: forms.Widget) -> str:
    class OneField(PageForm):
        field = forms.CharField(widget=widget)

    return str(OneField()["field"])


@pytest.mark.parametrize("widget", TYPED, ids=lambda widget: widget.__name__)
def test_what_is_typed_into_has_the_looks_of_the_pages(widget: type[forms.Widget]) -> None:
    assert 'class="form-control"' in shown(widget())


@pytest.mark.parametrize("widget", [forms.HiddenInput, forms.CheckboxInput], ids=lambda widget: widget.__name__)
def test_what_is_not_typed_into_keeps_its_own(widget: type[forms.Widget]) -> None:
    assert "class" not in shown(widget())
