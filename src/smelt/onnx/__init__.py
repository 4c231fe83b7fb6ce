"""ONNX models: `smelt.onnx.load(path).run(None, feeds)`.

    import smelt as sm

    model = sm.onnx.load("model.onnx")
    (embeddings,) = model.run(None, {"input_ids": ids, "attention_mask": mask})

Files are read without protobuf, within limits; nothing outside of the model's folder is opened. The
package onnx is needed by `smelt.onnx.backend` and for operators without a rule only.
"""

from smelt.onnx.session import NodeArg, Session, load

__all__ = ["NodeArg", "Session", "load"]
