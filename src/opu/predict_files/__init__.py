"""Predictions for files: images, arrays and named arrays in, a CSV or Parquet file out, with flat memory."""

from opu.predict_files.images import Pixels
from opu.predict_files.run import predict_files

__all__ = ["Pixels", "predict_files"]
