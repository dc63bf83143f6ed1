"""Ends the sockets of people who logged out, were locked out, or whose login ran out. One look for all sockets."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from django.contrib.sessions.models import Session
from django.db import Error
from django.utils import timezone

from console.accounts.models import User
from console.database import DatabaseThread
from console.live.collect import Collector
from console.live.consumers import LOGIN_ENDED
from console.live.fanout import Viewer

LOOK_EVERY_S = 15.0


async def follow(collector: Collector, database: DatabaseThread) -> None:
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        with suppress(Error):  # nobody is locked out because the database is away
            await look(collector.viewers, database)


async def look(viewers: Sequence[Viewer], database: DatabaseThread) -> None:
    if not viewers:
        return
    users = {viewer.user_id for viewer in viewers}
    sessions = {viewer.session_key for viewer in viewers}
    active_users, living_sessions = await database.run(_valid, users, sessions)
    for viewer in viewers:
        if viewer.user_id not in active_users or viewer.session_key not in living_sessions:
            viewer.dismiss(LOGIN_ENDED)


def _valid(users: set[int], sessions: set[str]) -> tuple[set[int], set[str]]:
    living = Session.objects.filter(session_key__in=sessions, expire_date__gt=timezone.now())
    return (
        set(User.objects.filter(pk__in=users, is_active=True).values_list("pk", flat=True)),
        set(living.values_list("session_key", flat=True)),
    )
