"""Inference keys: what a client of the router shows to use one deployment."""

from django.db import transaction

from console.accounts import audit
from console.accounts.access import refusal
from console.accounts.audit import Actor
from console.accounts.models import InferenceKey, Role
from console.accounts.secrets import terms
from console.fleet.errors import Forbidden, NotFound
from console.fleet.models import Deployment
from console.fleet.signals import deployment_changed


def issue(actor: Actor, deployment_id: int, name: str, expires_in_days: int | None = None) -> tuple[InferenceKey, str]:
    """The stored key and its plain text, which exists only here. Routers take it from the commit on.

    Raises Forbidden below operator, Invalid and NotFound.
    """
    _check_may_change(actor)
    name, expires_at = terms(name, expires_in_days)
    with transaction.atomic():
        deployment = _deployment(deployment_id)
        key, plain = InferenceKey.issue(deployment.pk, name, expires_at)
        after = {"name": key.name, "prefix": key.prefix, "expires_at": expires_at.isoformat() if expires_at else None}
        audit.record(actor, "key.make", f"deployment {deployment.name}", after=after)
        deployment_changed.send(sender=Deployment, deployment=deployment)
    return key, plain


def revoke(key_id: int, deployment_id: int, actor: Actor) -> InferenceKey:
    """Takes a key back; a second time changes nothing. Raises Forbidden below operator, and NotFound."""
    _check_may_change(actor)
    with transaction.atomic():
        deployment = _deployment(deployment_id)
        key = InferenceKey.objects.filter(pk=key_id, deployment=deployment).first()
        if key is None:
            raise NotFound(f"{deployment.name} has no such key.")
        if key.take_back():
            before = {"name": key.name, "prefix": key.prefix}
            audit.record(actor, "key.revoke", f"deployment {deployment.name}", before=before)
            deployment_changed.send(sender=Deployment, deployment=deployment)
    return key


def _check_may_change(actor: Actor) -> None:
    if not actor.can(Role.OPERATOR):
        raise Forbidden(refusal(Role.OPERATOR))


def _deployment(deployment_id: int) -> Deployment:
    deployment = Deployment.objects.filter(pk=deployment_id).first()
    if deployment is None:
        raise NotFound("There is no such deployment.")
    return deployment
