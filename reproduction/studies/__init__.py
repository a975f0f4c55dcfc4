"""Studies behind our choices, one script each: ``python -m reproduction.studies.NAME --help``.

A study writes its result under ``runs/``; with ``--record`` it writes into ``results/``, from which the documents' tables are
rendered. Rounds four to six of the search for the robust recipe (``results/study-robust-*.json``) are frozen: their
candidates belong to earlier versions of the library, and their scripts are gone.
"""
