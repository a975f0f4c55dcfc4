"""Attacks on what the library promises, counted: files, processes, threads, ties, and inputs that are no numbers."""
