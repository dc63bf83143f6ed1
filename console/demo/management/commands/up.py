"""`manage.py up`: a Switchyard on this machine. Hosts join it with `manage.py agent`."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from console import env
from console.demo import notices, up
from console.demo.supervise import CannotRun, StopAsked, Supervisor, say


class Command(BaseCommand):
    help = "Runs pages, router, worker, beat and, unless REDIS_URL is set, an embedded Valkey. Ctrl-C ends all of it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--bind",
            default="",
            metavar="ADDRESS",
            help="this machine's address in the network of the hosts, or 0.0.0.0: pages and the embedded broker "
            "listen there, so that other machines can join",
        )

    def handle(self, *args: Any, bind: str, **options: Any) -> None:
        try:
            place = up.Place.from_environment(settings.DATA_DIR, bind)
            with Supervisor(place.data_dir, say) as supervisor:
                child_env = up.start(supervisor, place)
                up.wait_until_it_answers(supervisor, place)
                say(f"Switchyard is ready: {place.url}")
                for notice in filter(None, (notices.of_broker(child_env["REDIS_URL"]), notices.of_people())):
                    say(notice)
                connections.close_all()  # none stays open in this process
                supervisor.run_forever()
        except StopAsked:
            say("Stopped.")
        except (CannotRun, env.BadSetting) as error:
            raise CommandError(str(error)) from error
