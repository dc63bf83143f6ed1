"""When we may call a host silent, and when we suspect ourselves."""

from console.launch.hearing import Hearing


def listen(hearing: Hearing, start: int, end: int, hear_somebody: bool = True) -> None:
    for second in range(start, end):
        hearing.note(float(second), hear_somebody)


def test_a_worker_that_starts_listens_first() -> None:
    hearing = Hearing(limit_s=15)
    listen(hearing, 0, 15)
    assert not hearing.is_sure(14.0)
    assert hearing.is_sure(15.0)


def test_while_nobody_is_heard_nothing_is_sure() -> None:
    hearing = Hearing(limit_s=15)
    listen(hearing, 0, 60)
    listen(hearing, 60, 61, hear_somebody=False)
    assert not hearing.is_sure(61.0)


def test_after_a_silence_of_all_each_host_gets_its_time_to_be_heard_again() -> None:
    hearing = Hearing(limit_s=15)
    listen(hearing, 0, 60)
    listen(hearing, 60, 90, hear_somebody=False)
    listen(hearing, 90, 100)
    assert not hearing.is_sure(100.0)
    assert hearing.is_sure(106.0)


def test_a_break_between_ticks_means_that_we_were_away() -> None:
    hearing = Hearing(limit_s=15)
    listen(hearing, 0, 60)
    hearing.note(120.0, True)
    assert not hearing.is_sure(121.0)
