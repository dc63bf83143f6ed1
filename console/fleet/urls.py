from django.urls import path

from console.fleet.views import deployments, hosts, moves, overview, servers

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("deployments/new/", deployments.new, name="deployment_new"),
    path("deployments/<slug:name>/", deployments.yard, name="deployment"),
    path("deployments/<slug:name>/edit/", deployments.edit, name="deployment_edit"),
    path("deployments/<slug:name>/delete/", deployments.delete, name="deployment_delete"),
    path("deployments/<slug:name>/clone/", deployments.clone, name="deployment_clone"),
    path("deployments/<slug:name>/pairs/", deployments.pairs, name="deployment_pairs"),
    path("deployments/<slug:name>/revisions/", deployments.revisions, name="deployment_revisions"),
    path("deployments/<slug:name>/revisions/<int:number>/restore/", deployments.roll_back, name="deployment_roll_back"),
    path("deployments/<slug:name>/servers/new/", servers.new, name="server_new"),
    path("servers/<int:server_id>/", servers.page, name="server"),
    path("servers/<int:server_id>/log/", servers.log, name="server_log"),
    path("servers/<int:server_id>/log/download/", servers.log_download, name="server_log_download"),
    path("servers/<int:server_id>/start/", servers.start, name="server_start"),
    path("servers/<int:server_id>/stop/", servers.stop, name="server_stop"),
    path("servers/<int:server_id>/stop/cancel/", servers.cancel_stop, name="server_stop_cancel"),
    path("servers/<int:server_id>/delete/", servers.delete, name="server_delete"),
    path("servers/<int:server_id>/move/", moves.ask, name="server_move"),
    path("moves/<int:move_id>/", moves.page, name="move"),
    path("moves/<int:move_id>/cancel/", moves.cancel, name="move_cancel"),
    path("moves/<int:move_id>/force/", moves.force, name="move_force"),
    path("moves/<int:move_id>/again/", moves.again, name="move_again"),
    path("hosts/", hosts.listing, name="hosts"),
    path("hosts/new/", hosts.new, name="host_new"),
    path("hosts/<slug:name>/", hosts.page, name="host"),
    path("hosts/<slug:name>/maintenance/", hosts.maintenance, name="host_maintenance"),
    path("hosts/<slug:name>/drain/", hosts.drain, name="host_drain"),
    path("hosts/<slug:name>/remove/", hosts.remove, name="host_remove"),
]
