"""`manage.py demo`: everything on this machine, to look around. `make demo` installs first."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from console import env
from console.demo import notices, plans, up
from console.demo.children import ChildSpec
from console.demo.ports import pick_range
from console.demo.seed import ready_line
from console.demo.servers import LaunchedServers
from console.demo.supervise import CannotRun, StopAsked, Supervisor, say

HOST_NAME = "this-machine"


class Command(BaseCommand):
    help = "Runs a whole Switchyard with one host, one deployment and traffic on it. Ctrl-C ends all of it."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            place, plan = up.Place.from_environment(settings.DATA_DIR), plans.from_environment()
            servers = LaunchedServers(state_dir(place))
            with Supervisor(place.data_dir, say, servers) as supervisor:
                self._run(supervisor, place, plan)
        except StopAsked:
            say("Stopped, with everything that it had started.")
        except (CannotRun, env.BadSetting) as error:
            raise CommandError(str(error)) from error

    def _run(self, supervisor: Supervisor, place: up.Place, plan: plans.Plan) -> None:
        file = place.data_dir / "demo.json"
        up.refuse_taken_port(place)
        if given := env.secret("REDIS_URL"):
            notices.refuse_absent_broker(given)
        _put_aside(file)
        say(f"Starting Switchyard in {place.data_dir}")
        child_env = up.start(supervisor, place)
        since = time.time()
        supervisor.start(agent(place, plan, child_env))
        say(f"Launching {len(plan.servers)} servers, for at most {plan.ready_limit_s:.0f} s")
        filling = ["seed", "--url", place.url, "--host", HOST_NAME, "--since", str(since), "--file", str(file)]
        child = supervisor.run_to_end(up.manage("seed", filling, child_env))
        if child.exit_code != 0:
            raise CannotRun(f"The demo could not be set up.\n{child.last_lines()}")
        up.wait_until_it_answers(supervisor, place)
        if env.flag("TRAFFIC", True):
            sender = [sys.executable, "-m", "console.demo.traffic", str(file)]
            supervisor.start(ChildSpec("traffic", sender, child_env))
        demo = json.loads(file.read_text())
        say(ready_line(demo))
        supervisor.run_forever()


def agent(place: up.Place, plan: plans.Plan, child_env: dict[str, str]) -> ChildSpec:
    first, last = pick_range(place.data_dir)
    arguments = ["agent", "--name", HOST_NAME, "--address", "127.0.0.1", "--state-dir", str(state_dir(place))]
    arguments += ["--port-range", f"{first}-{last}", "--simulate-gpus", str(plan.simulated_gpus)]
    return up.manage("agent", arguments, plans.agent_environment(plan, child_env))


def state_dir(place: up.Place) -> Path:
    return place.data_dir / "hosts" / HOST_NAME


def _put_aside(file: Path) -> None:
    """Whoever waits for the file must not read that of the last run; its password is still wanted."""
    if file.exists():
        file.replace(file.with_suffix(".last"))
