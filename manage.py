#!/usr/bin/env python
"""Runs a Switchyard command: `python manage.py help` lists them."""

import os
import sys

if __name__ == "__main__":
    if sys.argv[1:2] == ["router"]:
        # Needs nothing of Django, which would take more memory than the router itself.
        from routing.command import main

        sys.exit(main(sys.argv[2:], "manage.py router"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    from console.command_line import main as run

    run(sys.argv)
