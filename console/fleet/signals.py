"""Sent inside the transaction that changes something. Receivers act after commit (`transaction.on_commit`).

They let the gateway and the live view hear of changes without the domain knowing either.
"""

from django.dispatch import Signal

server_changed = Signal()
"""server: Server, old_state: ServerState. State, role or facts shown on its card changed."""
server_removed = Signal()
"""server_id: int, deployment_id: int."""
deployment_changed = Signal()
"""deployment: Deployment. Its routing policy, objectives or arguments changed."""
pair_changed = Signal()
"""pair: Pair."""
move_changed = Signal()
"""move: Move."""
host_changed = Signal()
"""host: Host. Registered, back, silent, in or out of maintenance."""
