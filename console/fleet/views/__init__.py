"""Pages of the fleet: the overview, the yard, servers, moves and hosts."""
