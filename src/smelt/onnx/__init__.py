"""ONNX models: `smelt.onnx.load(path).run(None, feeds)`.

    import smelt as sm

    model = sm.onnx.load("model.onnx")
    (embeddings,) = model.run(None, {"input_ids": ids, "attention_mask": mask})

Libraries that import onnxruntime run on Smelt after `smelt.onnx.as_onnxruntime()`.

Files are read without protobuf, within limits; nothing outside of the model's folder is opened. The
package onnx is needed by `smelt.onnx.backend` and for operators without a rule only.
"""

from smelt.onnx.onnxruntime import as_onnxruntime
from smelt.onnx.session import NodeArg, Session, load

__all__ = ["NodeArg", "Session", "as_onnxruntime", "load"]
