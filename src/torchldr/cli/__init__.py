"""The `torchldr` command, and what packages use that add commands to it: see `torchldr.cli.plugins`."""

from .app import command_line, main
from .options import AsJson, Many, wrong_use
from .printing import bar, say, show

__all__ = ["AsJson", "Many", "bar", "command_line", "main", "say", "show", "wrong_use"]
