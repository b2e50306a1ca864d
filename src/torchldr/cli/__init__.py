"""The `torchldr` command, and what packages use that add commands to it: see `torchldr.cli.plugins`."""

from .app import command_line, main
from .options import AsJson, Many
from .printing import say, show, steps

__all__ = ["AsJson", "Many", "command_line", "main", "say", "show", "steps"]
