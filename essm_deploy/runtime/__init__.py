"""What an app imports: open a bundle, run it, label a clip, push into a stream, continue a text.

    from essm_deploy import runtime

    model = runtime.load("out/kws")
    logits = model.run(features=features)["logits"]

    with runtime.load("out/bytes").stream() as stream:
        logits = stream.push(tokens)

The package needs the standard library, numpy and onnxruntime, and nothing else of essm_deploy but the leaves.
"""

from essm_deploy.runtime.generate import Generation, Statistics, generate
from essm_deploy.runtime.manifest import Budget, Engine, Manifest, ModelInfo, TensorInfo, read_manifest, verify_files
from essm_deploy.runtime.model import Model, load, select_engine
from essm_deploy.runtime.sequence import SequenceEngine
from essm_deploy.runtime.session import OrtSession, Session, open_session
from essm_deploy.runtime.stream import Stream
from essm_deploy.runtime.stream_info import StreamInfo
from essm_deploy.runtime.stream_outputs import StreamEngine, stream_outputs
from essm_deploy.runtime.stream_state import StreamState

__all__ = [
    "Budget",
    "Engine",
    "Generation",
    "Manifest",
    "Model",
    "ModelInfo",
    "OrtSession",
    "SequenceEngine",
    "Session",
    "Statistics",
    "Stream",
    "StreamEngine",
    "StreamInfo",
    "StreamState",
    "TensorInfo",
    "generate",
    "load",
    "open_session",
    "read_manifest",
    "select_engine",
    "stream_outputs",
    "verify_files",
]
