"""Who may do what: people, their API tokens, inference keys, and the trail of what they changed."""

import hashlib
import secrets
from datetime import datetime

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.utils import timezone


class Role(models.TextChoices):
    VIEWER = "viewer", "Viewer"
    OPERATOR = "operator", "Operator"
    ADMIN = "admin", "Admin"


RANK = {Role.VIEWER: 0, Role.OPERATOR: 1, Role.ADMIN: 2}


def digest(secret: str) -> str:
    """SHA-256 hex. Enough for secrets of 32 random bytes; passwords go through Django's own hashers."""
    return hashlib.sha256(secret.encode()).hexdigest()


class User(AbstractUser):
    """A person. A viewer sees, an operator moves and launches, an admin registers hosts and makes tokens."""

    role = models.CharField(max_length=16, choices=Role.choices, default=Role.VIEWER)

    def can(self, role: Role) -> bool:
        return self.is_active and (self.is_superuser or RANK[Role(self.role)] >= RANK[role])


class Secret(models.Model):
    """Stored as a hash and shown once; `prefix` lets people tell one from another."""

    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=12)
    hashed = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    KIND = "sy"

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    @classmethod
    def make_plain(cls) -> str:
        return f"{cls.KIND}-{secrets.token_urlsafe(32)}"

    def is_valid(self, now: datetime | None = None) -> bool:
        now = now or timezone.now()
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)

    def take_back(self) -> bool:
        """It works no longer. True for the one caller who did it: the others find it done, and leave no trace of it."""
        now = timezone.now()
        if not type(self)._default_manager.filter(pk=self.pk, revoked_at=None).update(revoked_at=now):
            return False
        self.revoked_at = now
        return True


class ApiToken(Secret):
    """Lets automation act as its owner, with at most the role in `scope`."""

    KIND = "syt"

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    scope = models.CharField(max_length=16, choices=Role.choices, default=Role.VIEWER)

    @classmethod
    def issue(cls, user: User, name: str, scope: Role, expires_at: datetime | None = None) -> tuple["ApiToken", str]:
        """The stored token and its plain text, which exists only here."""
        plain = cls.make_plain()
        token = cls.objects.create(
            user=user, name=name, scope=scope, expires_at=expires_at, prefix=plain[:10], hashed=digest(plain)
        )
        return token, plain


class InferenceKey(Secret):
    """Lets a client of the router use one deployment."""

    KIND = "syk"

    deployment = models.ForeignKey("fleet.Deployment", on_delete=models.CASCADE, related_name="inference_keys")

    @classmethod
    def issue(cls, deployment_id: int, name: str, expires_at: datetime | None = None) -> tuple["InferenceKey", str]:
        """The stored key and its plain text. Publish the routing table after commit (`gateway.publish.changed`)."""
        plain = cls.make_plain()
        key = cls.objects.create(
            deployment_id=deployment_id, name=name, expires_at=expires_at, prefix=plain[:10], hashed=digest(plain)
        )
        return key, plain


class JoinToken(Secret):
    """Lets machines join as hosts: under `host_name` only where that is given, and one machine only if `single_use`."""

    KIND = "syj"

    host_name = models.CharField(max_length=63, blank=True)
    single_use = models.BooleanField(default=True)
    made_by = models.CharField(max_length=150)

    @classmethod
    def issue(
        cls, made_by: str, name: str, host_name: str = "", single_use: bool = True, expires_at: datetime | None = None
    ) -> tuple["JoinToken", str]:
        """The stored token and its plain text, which exists only here."""
        plain = cls.make_plain()
        token = cls.objects.create(
            name=name,
            host_name=host_name,
            single_use=single_use,
            made_by=made_by,
            expires_at=expires_at,
            prefix=plain[:10],
            hashed=digest(plain),
        )
        return token, plain

    @property
    def is_used_up(self) -> bool:
        return self.single_use and self.last_used_at is not None

    def is_valid(self, now: datetime | None = None) -> bool:
        return super().is_valid(now) and not self.is_used_up


class HostLogin(Secret):
    """A joined host's login at the broker. Its agent made the secret; only the hash ever left the machine."""

    host = models.OneToOneField("fleet.Host", on_delete=models.CASCADE, related_name="login")
    token = models.ForeignKey(JoinToken, null=True, on_delete=models.SET_NULL, related_name="logins")
    is_own = models.BooleanField(default=True)
    """False: the broker keeps no logins for us, and the host uses the console's own."""


class AuditEntry(models.Model):
    """One change: who, what, before, after, why. Never edited, never deleted by the product."""

    at = models.DateTimeField(default=timezone.now)
    actor = models.CharField(max_length=150)
    """The user's name, `token:<name> of <user>` or `system`. Text, so that it outlives the account."""
    action = models.CharField(max_length=60)
    """`server.start`, `server.move`, `deployment.update`, …"""
    target = models.CharField(max_length=120)
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)
    reason = models.CharField(max_length=400, blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["target", "-id"], name="audit_by_target")]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S} {self.actor} {self.action} {self.target}"
