"""What an app imports: open a bundle, run it, label a clip.

    from essm_deploy import runtime

    model = runtime.load("out/kws")
    logits = model.run(features=features)["logits"]

The package needs the standard library, numpy and onnxruntime, and nothing else of essm_deploy but the leaves.
"""

from essm_deploy.runtime.manifest import Budget, Engine, Manifest, ModelInfo, TensorInfo, read_manifest, verify_files
from essm_deploy.runtime.model import Model, SequenceEngine, load, select_engine
from essm_deploy.runtime.session import OrtSession, Session, open_session

__all__ = [
    "Budget",
    "Engine",
    "Manifest",
    "Model",
    "ModelInfo",
    "OrtSession",
    "SequenceEngine",
    "Session",
    "TensorInfo",
    "load",
    "open_session",
    "read_manifest",
    "select_engine",
    "verify_files",
]
