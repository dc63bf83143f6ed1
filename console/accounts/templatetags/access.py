"""What the person may do, for templates: `{% if user|may:"operator" %}`."""

from django import template
from django.contrib.auth.models import AnonymousUser

from console.accounts.models import Role, User

register = template.Library()


@register.filter
def may(user: User | AnonymousUser, role: str) -> bool:
    return isinstance(user, User) and user.can(Role(role))


@register.filter
def role_text(user: User | AnonymousUser) -> str:
    if not isinstance(user, User):
        return ""
    return str(Role.ADMIN.label if user.is_superuser else Role(user.role).label)
