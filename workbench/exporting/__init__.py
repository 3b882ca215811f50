"""05: the trained policy as files that others can load, with the proof that they hold the trained adapter."""

from workbench.exporting.merge import Exported, export

__all__ = ["Exported", "export"]
