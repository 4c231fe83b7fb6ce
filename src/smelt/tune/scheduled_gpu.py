"""Price the clusters of a plan by the schedules of their kernels.

    machine = scheduled(gpu("h100"))
    machine.kernel_time(cluster, sizes, ()).total

The planner asks a machine of this kind, so that it decides by the times that a report shows: there
is one function for both (`smelt.codegen.triton.launch_time`). Prices are kept for isomorphic
clusters.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import field, fields
from functools import lru_cache

from smelt import knobs, lower
from smelt.backend.gpu import Gpu, KernelTime
from smelt.codegen.triton.candidates import Candidate, candidates
from smelt.codegen.triton.device_limits import DeviceRates, device_limits
from smelt.codegen.triton.schedule import EXACT, FAST, Policy
from smelt.fusion.device_cost import PricedGpu
from smelt.fusion.plan import Cluster
from smelt.kernel.ir import Kernel
from smelt.python.dataclass import dataclass
from smelt.types.expr import evaluate, product

MAX_PRICES = 1 << 13
"""Maximum prices that are kept: some hundred for each program that is planned."""


class ScheduledGpu(PricedGpu):
    """A GPU whose kernels take the time of their fastest Triton schedules."""

    def kernel_time(
        self, cluster: Cluster, sizes: Mapping[str, int], cached: Collection[int]
    ) -> KernelTime:
        """Return the time of the kernel of a cluster; see `PricedGpu`."""
        return _price(
            _Question(
                lower.cluster_signature(cluster),
                tuple(sorted(sizes.items())),
                tuple(cached),
                self,
                knobs.ROUNDING.get(),
                cluster,
                sizes,
            )
        )


def scheduled(machine: Gpu) -> ScheduledGpu:
    """Return a GPU that prices kernels by their schedules."""
    if isinstance(machine, ScheduledGpu):
        return machine
    return ScheduledGpu(**{f.name: getattr(machine, f.name) for f in fields(machine)})


@dataclass(frozen=True, slots=True)
class _Question:
    """Everything that a price depends on; clusters are compared by their signatures."""

    signature: Hashable
    at: tuple[tuple[str, int], ...]
    cached: tuple[int, ...]
    machine: Gpu
    rounding: str
    cluster: Cluster = field(compare=False)
    sizes: Mapping[str, int] = field(compare=False)


@lru_cache(MAX_PRICES)
def _price(question: _Question) -> KernelTime:
    machine, sizes, device = question.machine, question.sizes, rates_of(question.machine)
    kernel = lower.run(question.cluster, question.rounding, sizes, machine.tiling)
    params = (*kernel.inputs, *kernel.outputs)
    cached = {params[k].name for k in question.cached}
    total = KernelTime()
    for chosen, *_ in candidates(kernel, sizes, device, policy_in_force()):
        at = {*cached, *cached_partials(kernel, chosen, sizes, machine)}
        total += chosen.time_of(device, at)
    return total


def cached_partials(
    kernel: Kernel, candidate: Candidate, sizes: Mapping[str, int], machine: Gpu
) -> set[str]:
    """Return the parameters between a kernel's launches that rest in the shared cache."""
    of_kernel = {p.name for p in (*kernel.inputs, *kernel.outputs)}
    return {
        p.name
        for p in (*candidate.launch.inputs, *candidate.launch.outputs)
        if p.name not in of_kernel
        and machine.level(int(evaluate(product(p.shape), sizes)) * p.dtype.itemsize) != "dram"
    }


@lru_cache
def rates_of(machine: Gpu) -> DeviceRates:
    """Return a device as schedules are compared on it."""
    rates = dict(machine.matrix_gflops)
    return DeviceRates(
        arch=machine.arch,
        limits=device_limits(machine.arch),
        processors=machine.processors,
        gbytes_per_second=machine.bandwidth("dram", "read"),
        cache_gbytes_per_second=machine.cache_gbs,
        cache_bytes=machine.cache_bytes,
        launch_ns=machine.launch_ns,
        tensor_tflops=rates.get("f16", 0.0) / 1e3,
        tf32_tflops=rates.get("tf32", 0.0) / 1e3,
        matrix_share=machine.matrix_share,
        float32_tflops=machine.vector_gflops / 1e3,
        float64_tflops=machine.double_gflops / 1e3,
        special_ns=machine.special_ns,
    )


def policy_in_force() -> Policy:
    """Return how exact programs are: hardware approximations are for `rounding="fast"` alone."""
    return FAST if knobs.ROUNDING.get() == "fast" else EXACT
