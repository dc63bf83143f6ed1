"""What runs beside the pages and sockets of one pages' process, from its start to its end."""

from console.background import Background
from console.database import DatabaseThread
from console.gateway.samples import Samples
from console.live import doorkeeper
from console.live.collect import Collector
from console.live.load import LoadWatch
from console.live.publish import tell_server


class LiveServices:
    """The loops that gather what happens and tell the browsers."""

    def __init__(self) -> None:
        self.database = DatabaseThread("live")
        self.collector = Collector(self.database)
        self.samples = Samples(self.database)
        self.load_watch = LoadWatch(
            self.collector,
            self.samples.deployments,
            self.samples.engines,
            lambda server_id: self.database.run(tell_server, server_id),
        )
        self.background = Background()

    def start(self) -> None:
        self.background.start("reading live events", self.collector.read)
        self.background.start("sending frames", self.collector.send)
        self.background.start("reading engine samples", self.samples.follow)
        self.background.start("watching loads", self.load_watch.follow)
        self.background.start("checking logins of sockets", lambda: doorkeeper.follow(self.collector, self.database))

    async def stop(self) -> None:
        await self.background.stop()
        self.database.close()
