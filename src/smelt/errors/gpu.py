"""E7xx: GPUs: drivers, device memory, streams, and arrays that a program cannot take."""

from __future__ import annotations

from smelt.errors.tree import SmeltError


class NoDriverError(SmeltError, RuntimeError):
    """There is no GPU that this process can use.

    What it means:
        The driver's library (libcuda) is missing, or it reports no device.
    Why:
        A device was requested by name or by an array on it; nothing moves to the CPU silently.
    Example:
        import smelt as sm

        sm.asarray([1.0], device="cuda:0")
    How to fix:
        `nvidia-smi` shows driver and devices. In a container, start it with access to the GPU.
    """

    code = "E701"
    title = "no GPU"
    template = "{reason}"
    hint = "`nvidia-smi` shows driver and devices; CUDA_VISIBLE_DEVICES may hide them."


class OldDriverError(SmeltError, RuntimeError):
    """The GPU's driver is older than the calls that Smelt makes.

    What it means:
        The driver has a lower version than required, or lacks a function of its interface.
    Why:
        Allocation in stream order and updates of graphs came with CUDA 12.
    Example:
        from smelt.errors import OldDriverError

        raise OldDriverError(present="11.4", required="12.0")
    How to fix:
        Update the driver; the CUDA toolkit need not be installed.
    """

    code = "E702"
    title = "driver too old"
    template = "the driver offers CUDA {present}, {required} is required"
    hint = "Update the GPU's driver; no toolkit is needed."


class DeviceMemoryError(SmeltError, MemoryError):
    """A device has too little free memory for a call.

    What it means:
        An allocation failed. The message has its size, what is free, and what this process holds
        through Smelt.
    Why:
        Intermediates take one block per call, and results stay until the last array on them is
        gone.
    Example:
        from smelt.errors import DeviceMemoryError

        raise DeviceMemoryError(needed="8 GiB", device="cuda:0", free="2 GiB", held="60 GiB")
    How to fix:
        Drop arrays that are no longer needed, or work on smaller batches. Other processes and
        other libraries' caches (`torch.cuda.empty_cache()`) may hold memory too.
    """

    code = "E703"
    title = "out of device memory"
    template = "{needed} are needed on {device}, {free} are free; Smelt holds {held} there"
    hint = "Drop arrays or use smaller batches; torch.cuda.empty_cache() returns torch's memory."


class DriverCallError(SmeltError, RuntimeError):
    """A call of the GPU's driver failed.

    What it means:
        The driver refused a call, or reports that an earlier kernel failed: errors of kernels
        appear at a later call. The message has the driver's name and text for it.
    Why:
        After an error of a kernel (an illegal address, say) the driver answers every call of the
        process with it.
    Example:
        from smelt.errors import DriverCallError

        raise DriverCallError(call="cuLaunchKernel", name="CUDA_ERROR_X", text="a text")
    How to fix:
        Run with `CUDA_LAUNCH_BLOCKING=1` to see the call at fault, and report the message.
    """

    code = "E704"
    title = "driver call failed"
    template = "{call}: {name}, {text}"
    hint = "Set CUDA_LAUNCH_BLOCKING=1 to see which call is at fault; restart the process."


class DeviceLayoutError(SmeltError, ValueError):
    """An array on a device is not stored as the program reads it.

    What it means:
        The array has strides, or starts at an address that is not a multiple of 16 bytes.
    Why:
        Programs of a device read contiguous arrays in vectors of 16 bytes. Functions of `sm.jit`
        and `torch.compile` copy what is not; an executable that is called by itself does not.
    Example:
        from smelt.errors import DeviceLayoutError

        raise DeviceLayoutError(argument="x", reason="it has strides (1, 4)")
    How to fix:
        Pass a contiguous copy: `x.contiguous()` or `x.clone()` in torch, `cupy.ascontiguousarray`.
    """

    code = "E705"
    title = "layout of a device array"
    template = "{argument}: {reason}"
    hint = "Pass a contiguous copy: x.contiguous(), or x.clone() for a shifted view."


class CaptureError(SmeltError, RuntimeError):
    """The current stream is recorded into a graph, which cannot have the call.

    What it means:
        The call would load code, wait for the device (for the condition of a loop, for example) or
        allocate memory outside of torch's pool, which a capture forbids.
    Why:
        The graph would hold addresses of memory that is freed, or the capture would fail later.
    Example:
        from smelt.errors import CaptureError

        raise CaptureError(reason="the program is loaded by its first call")
    How to fix:
        Call the function once with these shapes before capturing, on arrays of torch.
    """

    code = "E706"
    title = "stream is captured"
    template = "{reason}"
    hint = "Call the function once with these shapes before the capture, on torch's tensors."


class DeviceForkError(SmeltError, RuntimeError):
    """A forked process uses a GPU that its parent had initialised.

    What it means:
        The driver's state is that of the parent process, and no call works in the child.
    Why:
        CUDA does not support forks after its initialisation.
    Example:
        from smelt.errors import DeviceForkError

        raise DeviceForkError(parent=4242)
    How to fix:
        Start workers by `spawn`: `multiprocessing.set_start_method("spawn")`.
    """

    code = "E707"
    title = "GPU used after a fork"
    template = "the process {parent} initialised the GPU before it forked this one"
    hint = "Start workers with multiprocessing's method `spawn`."


class DeviceSizeError(SmeltError, ValueError):
    """A value or a grid is too large for a device's program.

    What it means:
        An array has 2**31 elements or more, or a launch has more programs than a grid can.
    Why:
        Offsets in the programs have 32 bits; they would wrap around.
    Example:
        from smelt.errors import DeviceSizeError

        raise DeviceSizeError(what="x", size=2**31, limit=2**31 - 1)
    How to fix:
        Split the arrays, or run this part on the CPU.
    """

    code = "E708"
    title = "too large for a device's program"
    template = "{what} has {size}, {limit} is the most"
    hint = "Split the arrays along their first dimension."
