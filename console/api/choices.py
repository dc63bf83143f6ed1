"""Choices as a body may give them: the strict reading of bodies would otherwise take no text for an enumeration."""

from typing import Annotated, Literal

from pydantic import Field

from console.accounts import models as accounts
from console.fleet import models as fleet
from console.fleet import states

_as_text = Field(strict=False)

PersonRole = Annotated[accounts.Role, _as_text]
ServerRole = Annotated[states.ServerRole, _as_text]
Engine = Annotated[fleet.Engine, _as_text]
KvLoadFailurePolicy = Annotated[fleet.KvLoadFailurePolicy, _as_text]
WhenNoPair = Annotated[fleet.WhenNoPair, _as_text]

Route = Literal["split", "short prompt", "plain", "fallback", "direct"]
Outcome = Literal["ok", "failed", "cancelled", "refused"]
"""Both as the routers write them into records."""

HostLoginKind = Literal["own", "shared", "revoked"]
