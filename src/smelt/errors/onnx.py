"""E8xx: ONNX files that are damaged, too large, or point where they may not."""

from __future__ import annotations

from smelt.errors.tree import SmeltError


class OnnxFileError(SmeltError, ValueError):
    """An ONNX file that is damaged, or no ONNX file.

    What it means:
        The bytes are not a valid protobuf message, or the model contradicts itself: a tensor whose
        bytes do not fit its shape, a value that is used before it is computed or is defined twice.
    Why:
        Nothing of the model has run. A guess at what was meant could give wrong results.
    Example:
        import smelt as sm

        sm.onnx.load(b"not a model")
    How to fix:
        Download or export the file again; `onnx.checker.check_model` describes more of it.
    """

    code = "E801"
    title = "damaged ONNX file"
    template = "{what}"
    hint = "Download or export the file again."


class OnnxLimitError(SmeltError, ValueError, MemoryError):
    """An ONNX file that exceeds a limit of the reader.

    What it means:
        The file is larger, more deeply nested, or expands to more memory than the reader permits.
        The limits are far beyond real models.
    Why:
        A small hostile file could otherwise take all memory or all time of the process.
    Example:
        import smelt as sm

        def field(number, data):
            size = [len(data)] if len(data) < 128 else [len(data) % 128 + 128, len(data) // 128]
            return bytes([number * 8 + 2, *size]) + data

        nested = b""
        for _ in range(50):  # a graph in an attribute of a node in a graph ..
            nested = field(1, field(5, field(6, nested)))
        sm.onnx.load(field(7, nested))
    How to fix:
        Store large weights as external data, and split the graph.
    """

    code = "E802"
    title = "ONNX file beyond a limit"
    template = "{what}"
    hint = "Store weights as external data, or split the graph."


class OnnxExternalError(SmeltError, OSError):
    """External data of an ONNX file that may not be read.

    What it means:
        A tensor's data is in another file, whose name leaves the model's folder, is a link or no
        regular file, or is shorter than the tensor.
    Why:
        A model from strangers could otherwise read any file of the user.
    Example:
        import smelt as sm

        def field(number, data):
            size = [len(data)] if len(data) < 128 else [len(data) % 128 + 128, len(data) // 128]
            return bytes([number * 8 + 2, *size]) + data

        place = field(13, field(1, b"location") + field(2, b"../secret"))
        tensor = bytes([8, 4, 16, 1]) + field(8, b"w") + place + bytes([112, 1])
        graph = field(5, tensor) + field(12, field(1, b"w"))
        sm.onnx.load(field(7, graph) + field(8, bytes([16, 21])), data_folder=".")
    How to fix:
        Put the data file into the folder of the model, as a regular file with one name.
    """

    code = "E803"
    title = "external data not read"
    template = "{name}: {reason}"
    hint = "Put the data into the model's folder, as a regular file."


class OnnxTypeError(SmeltError, TypeError, ValueError):
    """An input of an ONNX model with another type or shape than the model declares.

    What it means:
        An array fed to a model has another element type, rank or fixed size than the model's input.
    Why:
        A model is typed; nothing is converted silently except lists and Python numbers.
    Example:
        import numpy as np
        import smelt as sm

        def field(number, data):
            size = [len(data)] if len(data) < 128 else [len(data) % 128 + 128, len(data) // 128]
            return bytes([number * 8 + 2, *size]) + data

        node = field(1, b"x") + field(2, b"y") + field(4, b"Neg")
        kind = field(2, field(1, bytes([8, 1])))  # float32
        graph = field(1, node) + field(11, field(1, b"x") + kind) + field(12, field(1, b"y"))
        model = sm.onnx.load(field(7, graph) + field(8, bytes([16, 21])))
        model.run(None, {"x": np.zeros(3)})
    How to fix:
        Convert the array, as in `x.astype(np.int64)`; `model.inputs` lists what is expected.
    """

    code = "E804"
    title = "wrong input of an ONNX model"
    template = "{name} is {found}, {expected} expected"
    hint = "`model.inputs` lists names, types and shapes."
