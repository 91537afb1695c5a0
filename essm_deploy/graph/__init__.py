"""Building ONNX: weights as external data, the graph builder, the precision policy's checker."""
