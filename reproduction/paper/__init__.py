"""The paper's experiments: configurations over the library, and nothing more."""
