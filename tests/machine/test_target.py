"""The machine description: instruction sets, rates, text form, what the system tells."""

from __future__ import annotations

import ast
import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import smelt
from smelt.machine.processor import (
    INSTRUCTION_SETS,
    CacheSizes,
    arm_features,
    cache_sizes,
    cpu_model,
    processor_identity,
    usable_cores,
)
from smelt.machine.target import LEVELS, Isa, Target, classify, default_bandwidth

ISAS: tuple[Isa, ...] = ("avx512", "avx2", "portable", "neon", "neon-bf16")


@pytest.mark.parametrize(
    ("isa", "vector_bytes", "registers", "feature"),
    [
        ("avx512", 64, 32, "avx512f"),
        ("avx2", 32, 16, "fma"),
        ("portable", 16, 16, "sse2"),
        ("neon", 16, 32, "dotprod"),
        ("neon-bf16", 16, 32, "bf16"),
    ],
)
def test_isa_rows(isa: Isa, vector_bytes: int, registers: int, feature: str) -> None:
    target = Target.for_isa(isa)
    assert (target.vector_bytes, target.registers) == (vector_bytes, registers)
    assert target.has(feature)
    assert not target.has("no-such-feature")
    assert target.lanes(4) == vector_bytes // 4
    assert target.lanes(8) == vector_bytes // 8
    assert target.lanes(128) == 1


@pytest.mark.parametrize("isa", ISAS)
def test_isa_is_what_its_features_classify_as(isa: Isa) -> None:
    target = Target.for_isa(isa)
    assert classify(target.triple, frozenset(target.features)) == isa


@pytest.mark.parametrize("isa", ISAS)
def test_llvm_accepts_cpu_and_features(isa: Isa, capfd: pytest.CaptureFixture[str]) -> None:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    target = Target.for_isa(isa)
    built = llvm.Target.from_triple(target.triple)
    built.create_target_machine(cpu=target.cpu, features=target.feature_string)
    assert "not a recognized" not in capfd.readouterr().err


def test_unknown_isa_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="avx512, avx2"):
        Target.for_isa("avx1024")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("triple", "features", "isa"),
    [
        ("x86_64-unknown-linux-gnu", {"sse2"}, "portable"),
        ("x86_64-unknown-linux-gnu", {"avx2"}, "portable"),  # no fused multiply-add
        ("x86_64-unknown-linux-gnu", {"avx2", "fma", "f16c"}, "avx2"),
        ("x86_64-unknown-linux-gnu", {"avx2", "fma", "f16c", "avx512f"}, "avx2"),
        ("aarch64-apple-darwin", {"neon"}, "neon"),
        ("arm64-apple-macosx", set(), "neon"),
    ],
)
def test_classify(triple: str, features: set[str], isa: Isa) -> None:
    assert classify(triple, frozenset(features)) == isa


def test_fingerprint_is_the_instruction_set_and_nothing_else() -> None:
    target = Target.for_isa("avx2")
    moved = replace(
        target, fma_gflops=1.0, cores=7, measured=True, launch_ns=9.0, l2_bytes=1, name="other"
    )
    assert moved.fingerprint() == target.fingerprint()
    prints = {Target.for_isa(isa).fingerprint() for isa in ISAS}
    assert len(prints) == len(ISAS)
    for change in (
        {"features": (*target.features, "avxvnni")},
        {"disabled": ("f16c",)},
        {"cpu": "haswell"},
        {"triple": "x86_64-apple-darwin"},
    ):
        assert replace(target, **change).fingerprint() != target.fingerprint()


def test_feature_string_names_what_is_missing_too() -> None:
    target = replace(Target.for_isa("portable"), features=("sse2",), disabled=("avx", "bmi"))
    assert target.feature_string == "+sse2,-avx,-bmi"


@pytest.mark.parametrize("isa", ISAS)
def test_json_round_trip(isa: Isa) -> None:
    target = replace(Target.for_isa(isa), measured=True, disabled=("tbm",))
    again = Target.from_json(target.to_json())
    assert again == target
    assert hash(again) == hash(target)
    assert again.fingerprint() == target.fingerprint()


@pytest.mark.parametrize(
    "change",
    [
        {"fma_gflops": 0},
        {"fma_gflops": float("nan")},
        {"fma_gflops": "fast"},
        {"cores": -1},
        {"cores": True},
        {"isa": "mips"},
        {"l1_bytes": 1e300},
        {"one_thread": None},
        {"one_thread": {"l1": {"read": 1}}},
        {"op_ns": {"exp": -1}},
        {"surprise": 1},
    ],
)
def test_damaged_json_is_refused(change: dict[str, object]) -> None:
    data = {**json.loads(Target.for_isa("avx2").to_json()), **change}
    with pytest.raises(ValueError, match=r"."):
        Target.from_json(json.dumps(data))


def test_json_with_a_missing_part_is_refused() -> None:
    for name in ("triple", "isa", "all_threads"):
        data = json.loads(Target.for_isa("avx2").to_json())
        del data[name]
        with pytest.raises(ValueError, match="not a target description"):
            Target.from_json(json.dumps(data))
    for text in ("", "[]", "3", "null"):
        with pytest.raises(ValueError, match=r"."):
            Target.from_json(text)


def test_levels_by_footprint_and_threads() -> None:
    target = Target.for_isa("avx512", cores=4)
    assert target.level(0) == "l1"
    assert target.level(target.l1_bytes // 2) == "l1"
    assert target.level(target.l1_bytes) == "l2"
    assert target.level(target.l1_bytes, threads=4) == "l1"
    assert target.level(target.l2_bytes) == "l3"
    assert target.level(target.l3_bytes // 2) == "l3"
    assert target.level(target.l3_bytes) == "dram"
    assert target.level(64 * target.l3_bytes, threads=10**6) == "dram"


@given(st.integers(0, 1 << 36), st.integers(0, 1 << 36), st.integers(1, 64))
def test_level_never_comes_nearer_as_the_footprint_grows(a: int, b: int, threads: int) -> None:
    target = Target.for_isa("avx2", cores=8)
    small, big = sorted((a, b))
    assert LEVELS.index(target.level(small, threads)) <= LEVELS.index(target.level(big, threads))


def test_bandwidth_is_between_one_thread_and_all() -> None:
    target = Target.for_isa("avx512", cores=8)
    for level in LEVELS:
        figures = [target.bandwidth(level, "read", n) for n in range(1, 9)]
        assert figures == sorted(figures)
        assert figures[0] == target.one_thread.at(level).read
        assert figures[-1] == target.all_threads.at(level).read == target.bandwidth(level, "read")
        assert target.bandwidth(level, "read", 100) == figures[-1]


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_transfer_time_is_additive_and_monotone(read: int, written: int) -> None:
    target = Target.for_isa("avx2")
    ns = target.transfer_ns(read, written)
    assert ns >= 0
    assert target.transfer_ns(read + 4096, written) > ns or written >= read + 4096
    assert target.transfer_ns(2 * read, 2 * written) == pytest.approx(2 * ns)


def test_transfer_time_by_hand() -> None:
    target = replace(Target.for_isa("avx512"), nt_copy_gbs=80.0, nt_store_gbs=70.0)
    dram = target.all_threads.dram
    assert target.transfer_ns(1000, 0) == pytest.approx(1000 / dram.read)
    assert target.transfer_ns(0, 1000) == pytest.approx(1000 / 70.0)
    assert target.transfer_ns(3000, 1000) == pytest.approx(2000 / 80.0 + 2000 / dram.read)
    l2 = target.all_threads.l2
    assert target.transfer_ns(1000, 1000, "l2") == pytest.approx(2000 / l2.copy)


def test_a_unit_of_cost_is_a_cycle_of_sixteen_lanes() -> None:
    wide, narrow = Target.for_isa("avx512"), Target.for_isa("avx2")
    # Two multiply-adds of 16 lanes are 64 flops.
    assert wide.unit_ns == pytest.approx(64 / wide.fma_gflops)
    assert narrow.unit_ns == pytest.approx(2 * wide.unit_ns)
    assert wide.compute_ns(3.0, 16) == pytest.approx(3 * wide.unit_ns)
    assert wide.compute_ns(3.0, 16, itemsize=8) == pytest.approx(6 * wide.unit_ns)


def test_host_is_sane_and_computed_once() -> None:
    host = Target.host()
    assert host is Target.host()
    host.check()
    assert not host.measured
    assert 1 <= host.cores <= usable_cores()
    assert host.l1_bytes <= host.l2_bytes <= host.l3_bytes
    assert not set(host.features) & set(host.disabled)
    assert classify(host.triple, frozenset(host.features)) == host.isa
    assert not [f for f in host.features if f.startswith(("prefer-", "slow-", "fast-"))]


def test_every_numeric_field_is_checked() -> None:
    target = Target.for_isa("avx2")
    numeric = [f.name for f in fields(target) if f.type in ("int", "float")]
    assert len(numeric) > 12
    for name in numeric:
        with pytest.raises(ValueError, match=name):
            replace(target, **{name: -1}).check()


def test_default_rates_fall_with_distance() -> None:
    for isa in ISAS:
        for threads in (1, 2, 8, 64):
            rates = default_bandwidth(Target.for_isa(isa).vector_bytes, threads)
            for kind in ("read", "write", "copy"):
                figures = [getattr(rates.at(level), kind) for level in LEVELS]
                assert figures == sorted(figures, reverse=True), (isa, threads, kind)


# What the system tells ------------------------------------------------------------------------


def _cache(folder: Path, number: int, **facts: str) -> None:
    index = folder / f"cpu0/cache/index{number}"
    index.mkdir(parents=True)
    for name, value in facts.items():
        (index / name).write_text(value + "\n")


def test_cache_sizes_from_sysfs(tmp_path: Path) -> None:
    _cache(tmp_path, 0, level="1", type="Data", size="32K", coherency_line_size="128")
    _cache(tmp_path, 1, level="1", type="Instruction", size="64K")
    _cache(tmp_path, 2, level="2", type="Unified", size="2M")
    _cache(tmp_path, 3, level="3", type="Unified", size="36864K")
    assert cache_sizes(tmp_path) == CacheSizes(32 << 10, 2 << 20, 36 << 20, 128)


@pytest.mark.parametrize(
    ("sharing", "size", "counted"),
    [
        ("0-1", "491520K", 32 << 20),
        ("0-7,64-71", "98304K", 96 << 20),
        ("0-1", "16M", 16 << 20),
        ("0", "480M", 16 << 20),
        ("", "480M", 480 << 20),
        ("0-x", "480M", 480 << 20),
    ],
)
def test_the_last_cache_of_a_socket_is_not_that_of_a_few_cpus(
    tmp_path: Path, sharing: str, size: str, counted: int
) -> None:
    facts = {"shared_cpu_list": sharing, "type": "Unified"}
    _cache(tmp_path, 2, level="2", size="64M", **facts)
    _cache(tmp_path, 3, level="3", size=size, **facts)
    assert cache_sizes(tmp_path) == CacheSizes(l2=64 << 20, l3=counted)


def test_cache_sizes_default_where_sysfs_says_nothing(tmp_path: Path) -> None:
    assert cache_sizes(tmp_path) == CacheSizes()
    _cache(tmp_path, 0, level="1", type="Data", size="")
    _cache(tmp_path, 1, level="2", type="Unified", size="lots")
    _cache(tmp_path, 2, level="3", type="Unified", size="0K")
    _cache(tmp_path, 3, level="4", type="Unified", size="128M")
    assert cache_sizes(tmp_path) == CacheSizes()


def test_cpu_model(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    first = "model name\t: Chip 9\ncpu family\t: 26\nmodel\t\t: 2\nstepping\t: 1\n"
    info.write_text(f"processor\t: 0\n{first}\nprocessor\t: 1\nmodel name\t: Other\n")
    assert cpu_model(info) == "Chip 9 (26.2.1)"
    info.write_text("model name\t: Chip 9\n")
    assert cpu_model(info) == "Chip 9"
    assert cpu_model(tmp_path / "missing")


@pytest.mark.parametrize("cpu", ["znver5", "x86-64-v4", "emeraldrapids", "cooperlake"])
def test_pairs_of_bfloats_are_for_processors_that_are_faster_with_them(cpu: str) -> None:
    target = replace(Target.for_isa("avx512"), cpu=cpu)
    assert not target.has_fast_bf16_dot
    target = replace(target, features=(*target.features, "avx512bf16"))
    assert target.has_fast_bf16_dot == (cpu in ("znver5", "x86-64-v4"))


@pytest.mark.parametrize(("cpu", "few"), [("znver5", False), ("cascadelake", True)])
def test_processors_that_start_few_instructions(cpu: str, few: bool) -> None:
    target = replace(Target.for_isa("avx512"), cpu=cpu)
    assert target.is_issue_bound is few and target.prefetches_across_pages is not few


@pytest.mark.parametrize(("nbytes", "ways"), [(48 << 10, 12), (32 << 10, 8), (1 << 10, 1)])
def test_first_caches_have_a_page_for_each_way(nbytes: int, ways: int) -> None:
    assert replace(Target.for_isa("avx512"), l1_bytes=nbytes).l1_ways == ways


SOURCE = Path(smelt.__file__).parent
TABLES = {"machine/processor.py", "machine/target.py"}
"""Modules that may know which instruction set has what."""
FEATURES = {"instructions/dot_product.py", "instructions/machine.py", "bench", "cli/checks.py"}
"""Modules that ask for features: of the instructions that they emit, to show them."""


def named_sets(tree: ast.AST) -> list[int]:
    """Lines that compare something with the name of an instruction set."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for x in ast.walk(node)
        if isinstance(x, ast.Constant) and x.value in INSTRUCTION_SETS
    ]


def named_features(tree: ast.AST) -> list[int]:
    """Lines that ask a target for a feature by its name."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "has"
        and any(isinstance(x, ast.Constant) for x in node.args)
    ]


def test_decisions_ask_for_facts_not_for_names() -> None:
    """Which instruction set has what is in the table alone."""
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if name in TABLES:
            continue
        source = path.read_text()
        if ".has(" not in source and not any(x in source for x in INSTRUCTION_SETS):
            continue
        tree = ast.parse(source)
        assert not named_sets(tree), name
        assert not named_features(tree) or any(x in name for x in FEATURES), name


def test_the_search_for_names_finds_them() -> None:
    assert named_sets(ast.parse('x = 1 if target.isa in ("avx512", "neon") else 2'))
    assert named_features(ast.parse('target.has("fma")'))


def test_every_instruction_set_prints_its_facts() -> None:
    assert INSTRUCTION_SETS["neon"].summary == "128-bit vectors, 32 registers, no masked memory"
    assert len({row.summary for row in INSTRUCTION_SETS.values()}) == 4  # two are Arm's


ARM = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes crc32 atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp{more}
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
"""


def test_what_linux_says_about_an_arm_processor(tmp_path: Path) -> None:
    """Graviton2 and 3: their dot products, and an identity by which LLVM's answer is cached."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(ARM.format(more=""))
    second.write_text(ARM.format(more=" bf16 i8mm"))
    assert set(arm_features(first)) == {"dotprod", "rdm", "lse"}
    assert set(arm_features(second)) == {"dotprod", "rdm", "lse", "bf16", "i8mm"}
    assert processor_identity(first) and processor_identity(first) != processor_identity(second)
    arm = "aarch64-unknown-linux-gnu"
    assert classify(arm, frozenset(arm_features(first))) == "neon"
    assert classify(arm, frozenset(arm_features(second))) == "neon-bf16"
