"""`makejointoken`: one token for one machine, printed or kept in a file that stays while it is of use."""

import io
import stat
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from console.accounts import join_tokens, people
from console.accounts.models import AuditEntry, JoinToken

pytestmark = pytest.mark.django_db


def make(folder: Path) -> str:
    """What the file holds afterwards."""
    call_command("makejointoken", "gpu01", "--into", str(folder))
    return (folder / "gpu01").read_text()


def test_it_prints_a_token_for_one_machine_of_that_name() -> None:
    out = io.StringIO()
    call_command("makejointoken", "gpu01", stdout=out)
    token = join_tokens.find(out.getvalue().strip())
    assert (token.host_name, token.single_use, token.is_valid()) == ("gpu01", True, True)
    assert AuditEntry.objects.get().actor == "command line"


def test_a_name_that_no_host_can_have_is_refused() -> None:
    with pytest.raises(CommandError, match="lower-case letters"):
        call_command("makejointoken", "GPU 1")


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    make(tmp_path)
    assert stat.S_IMODE((tmp_path / "gpu01").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["gpu01"]


def test_a_token_that_waits_for_its_host_stays(tmp_path: Path) -> None:
    assert make(tmp_path) == make(tmp_path)


def test_a_token_that_has_let_its_host_in_stays(tmp_path: Path) -> None:
    plain = make(tmp_path)
    join_tokens.use(join_tokens.find(plain))
    JoinToken.objects.update(expires_at=timezone.now() - timedelta(days=1))
    assert make(tmp_path) == plain


def test_a_token_that_was_revoked_is_not_replaced(tmp_path: Path) -> None:
    plain = make(tmp_path)
    join_tokens.revoke(join_tokens.find(plain).pk, people.COMMAND_LINE)
    assert make(tmp_path) == plain


def test_a_token_that_expired_unused_is_replaced(tmp_path: Path) -> None:
    plain = make(tmp_path)
    JoinToken.objects.update(expires_at=timezone.now() - timedelta(days=1))
    assert join_tokens.find(make(tmp_path)).is_valid()
    assert make(tmp_path) != plain


def test_a_token_of_another_database_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "gpu01").write_text("syj-of-a-database-that-is-gone")
    assert join_tokens.find(make(tmp_path)).is_valid()
