"""Everybody else: torch (eager, compiled), ONNX Runtime, OpenVINO and ExecuTorch on exports of torch's model."""
