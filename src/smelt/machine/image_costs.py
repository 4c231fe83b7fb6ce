"""What convolutions and products cost with channels first and with channels last.

`smelt.passes.choose_image_layout` compares the two orders with these figures. A machine whose
kernels take either order alike has none, and the data's order is kept.
"""

from __future__ import annotations

from smelt.python.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ImageCosts:
    """Nanoseconds of one core; pairs are (channels first, channels last).

    The defaults are a CPU's, fitted to single convolutions of ResNet-18 and MobileNetV2 (batches of
    1 and 8, float32, AVX-512). They decide for every CPU, so that its results do not differ.
    """

    lanes: int = 16
    """Float32 elements of a vector."""
    flop_ns: float = 1 / 270
    """One multiplication or addition of a contraction."""
    contract_flop_factors: tuple[float, float] = (1.10, 1.05)
    """Factors on `flop_ns` with full vectors: contractions that are not over windows."""
    window_flop_factors: tuple[float, float] = (1.08, 0.99)
    """As `contract_flop_factors`, for contractions over windows."""
    min_window_fill: float = 0.75
    """Minimum fill of vectors in contractions over windows, whose vectors span several rows."""
    contract_byte_ns: tuple[float, float] = (0.022, 0.010)
    """A byte of the data and results of contractions that are not over windows."""
    window_byte_ns: tuple[float, float] = (0.040, 0.050)
    """As `contract_byte_ns`, for contractions over windows."""
    depthwise_element_ns: tuple[float, float] = (0.25, 0.12)
    """An element of a depthwise convolution: of the result or the data, whichever has more."""
    depthwise_term_ns: tuple[float, float] = (0.0088, 0.0115)
    """A product of a depthwise convolution."""
    packed_byte_ns: tuple[float, float] = (0.06, 0.11)
    """A byte of channels-last weights packed in the call: of a contraction, and over windows."""
    transposed_packed_byte_ns: float = 0.026
    """The same by tile transposes, where all taps of a channel are contiguous."""
    prepacked_byte_ns: float = 0.01
    """A byte of channels-last weights that are read prepacked."""
    gathered_store_ns: float = 0.25
    """An element of a windowed result computed from channels-first data with weights packed in the
    call: accumulators hold pixels of one channel, so the channels-last store gathers."""
    transposed_read_ns: float = 0.15
    """An element of channels-first data that is transposed while it is packed, as where weights
    are prepacked or channels are few."""
    few_channels: int = 4
    """Maximum number of input channels that count as few."""
    permute_ns: float = 0.4
    """An element of a permutation kernel."""
