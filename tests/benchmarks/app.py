"""Twenty lines around the runtime that time themselves: python -m tests.benchmarks.app BUNDLE ENGINE THREADS SECONDS"""

import json
import sys
import time

import numpy as np

from essm_deploy import runtime

bundle, engine, threads, seconds = sys.argv[1:]
model = runtime.load(bundle, engine=engine, threads=int(threads))
port = next(entry for entry in model.engine.inputs if entry.name in ("tokens", "features"))
rng, shape = np.random.default_rng(0), [size if isinstance(size, int) else 1 for size in port.shape]
data = rng.integers(0, port.maximum, shape) if port.maximum else rng.standard_normal(shape).astype(np.float32)
stream = model.stream() if model.engine.kind == "stream" else None
times: list[float] = []
end = time.perf_counter() + float(seconds)
while len(times) < 20 or time.perf_counter() < end:
    start = time.perf_counter()
    stream.push(data) if stream else model.run(**{port.name: data})
    times.append((time.perf_counter() - start) * 1e3)
print(json.dumps(times[len(times) // 4 :]))  # the first quarter warms up
