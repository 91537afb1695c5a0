"""Label clips with a bundle, through the runtime alone (numpy and onnxruntime).

python examples/keyword_app/app.py out/keywords-cpu clip.wav another.wav
"""

from __future__ import annotations

import sys

from essm_deploy import runtime
from essm_deploy.errors import EssmError
from essm_deploy.frontend import read_audio


def main(bundle: str, *clips: str) -> int:
    model = runtime.load(bundle)
    if model.frontend is None:
        print(f"{bundle}: the model takes no audio", file=sys.stderr)
        return 2
    for clip in clips:
        best = model.classify(read_audio(clip, model.frontend.sample_rate))[0]
        print(f"{clip}\t{best['label']}\t{best['score']:.3f}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except EssmError as error:
        sys.exit(f"error: {error}")
