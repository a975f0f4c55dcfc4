"""The demo: a whole distillation on scikit-learn's digits, which needs no download."""

from opu.demo.run import run_demo

__all__ = ["run_demo"]
