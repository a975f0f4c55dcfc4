"""Studies behind our choices: each is one script whose result lies in ``results/`` and is shown in ``docs/log.md``."""
