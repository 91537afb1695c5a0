"""Benchmarks against what others do, on the same weights in the same run.

    pip install -r tests/benchmarks/requirements.txt
    python -m tests.benchmarks.prefill -o out/bench          # about six minutes; --quick for a first look
    python -m tests.benchmarks.decode -o out/bench
    python -m tests.benchmarks.memory -o out/bench
    python -m tests.benchmarks.compile -o out/bench
    python -m tests.benchmarks.agreement -o out/bench        # `profile` against an app; needs no peer
    python -m tests.benchmarks.repeated -o out/bench         # do ten builds choose the same budget?
    python -m tests.benchmarks.web -o out/bench             # in Node and Chromium, against the same engines here
    python -m tests.benchmarks.train_step -o out/bench      # of the trainer, at every budget; no peers

Each writes NAME.json (every sample) and NAME.md (the table) and prints the table. A peer that does not run is a row that
says why. Every contender lives in a process of its own and they take turns, A B C A B C; a ratio is the median of the
ratios of single rounds, so that a machine that slows down for a while slows both sides of it.

    workloads.py   the models                    floor.py     the engine's GEMMs and nothing else
    ours.py        engines of this product       peers/       everybody else, and their spellings
    worker.py      one contender, one process    turns.py     who runs when
    ratios.py      medians and spreads           report.py    JSON and Markdown
"""
