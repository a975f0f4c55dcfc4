"""Export: students as ONNX and torch.export files with every measure inside."""

from opu.export.file import Exported, write

__all__ = ["Exported", "write"]
