"""TensorRT, both flavours: ONNX graph -> engine file, with the proof that its spectral island computes in fp32."""

from essm_deploy.backends.tensorrt.backend import TensorRtBackend
from essm_deploy.backends.tensorrt.flavours import CLASSIC, FLAVOURS, RTX, Flavour

__all__ = ["CLASSIC", "FLAVOURS", "RTX", "Flavour", "TensorRtBackend"]
