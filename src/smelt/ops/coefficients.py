"""Tabulate the coefficients of the approximations: one `Fit` for float32, one for float64.

Polynomials are minimax fits computed for this project (Remez exchange and Lawson weights in 45 to
70 digits), rounded to the type that evaluates them, constant term first.  Constants come in pairs
whose sum is accurate to twice the precision, the first with trailing zeros where products must be
exact.

>>> sum(FITS["f64"].log2_e)
1.4426950408889634
"""

from __future__ import annotations

from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, f32, f64, i32, i64

Series = tuple[float, ...]
Pair = tuple[float, float]


def _hex(text: str) -> Series:
    return tuple(float.fromhex(literal) for literal in text.split())


def _three(text: str) -> tuple[float, float, float]:
    a, b, c = _hex(text)
    return a, b, c


@dataclass(frozen=True)
class Fit:
    """Coefficients and limits for one float type."""

    dtype: DType
    integer: DType
    """The integer type of the same width."""
    mantissa: int
    """Stored bits of the fraction."""
    bias: int
    """Bias of the exponent."""
    exp_limit: float
    """e^x is infinite above it and rounds to zero below its negative."""
    sigmoid_limit: float
    """1 + e^-x rounds to 1 above it."""
    tanh_limit: float
    """tanh x rounds to 1 above it."""
    circle_limit: float
    """Largest argument of sin and cos that is reduced in three steps."""
    exp: Series
    """(e^r - 1 - r) / r² on |r| ≤ ln √2."""
    exp_near: Series
    """(e^r - 1 - r) / r² on |r| ≤ ln 2 / 32."""
    powers: Series
    """2^(j/16) for j from 0 to 15."""
    log: Series
    """float32: (ln(1+f) - f + f²/2) / f³ on [-¼, ½]; float64: (2 atanh(s)/s - 2) / s² by s²."""
    sin: Series
    """(sin r / r - 1) / r² by r² on |r| ≤ π/4."""
    cos: Series
    """(cos r - 1 + r²/2) / r⁴ by r² on |r| ≤ π/4."""
    sinh: Series
    """(sinh r / r - 1) / r² by r² on |r| ≤ ln √2."""
    cosh: Series
    """(cosh r - 1) / r² by r² on |r| ≤ ln √2."""
    asin: Series
    """(asin x / x - 1) / x² by x² on |x| ≤ ½."""
    atan: Series
    """(atan x / x - 1) / x² by x² on |x| ≤ tan π/8."""
    erf: Series
    """erf x / x - 1 by x² on |x| ≤ 1."""
    erfc: Series
    """erfc(a)·e^(a²)·(1 + 2a) by (a - k) / (a + k) for a ≥ ½."""
    erfc_centre: float
    """The k of `erfc`."""
    ln2: Pair
    log2_e: Pair
    log10_e: Pair
    log10_2: Pair
    half_pi: tuple[float, float, float]

    @property
    def min_weight_exponent(self) -> float:
        """Return the least exponent of a weight whose products stay normal.

        Its product with an ulp of 1 is still normal.

        >>> FITS["f32"].min_weight_exponent, FITS["f64"].min_weight_exponent
        (-101.0, -968.0)
        """
        return float(3 + self.mantissa - self.bias)


_SINGLE = Fit(
    dtype=f32,
    integer=i32,
    mantissa=23,
    bias=127,
    exp_limit=104.0,
    sigmoid_limit=30.0,
    tanh_limit=10.0,
    circle_limit=1e5,
    exp=_hex("0x1.fffffcp-2 0x1.555492p-3 0x1.5558aep-5 0x1.123980p-7 0x1.6a4f28p-10"),
    exp_near=_hex("0x1.000220p-1 0x1.555736p-3"),
    powers=_hex(
        "0x1p+0 0x1.0b5586p+0 0x1.172b84p+0 0x1.2387a6p+0 0x1.306fe0p+0 0x1.3dea64p+0"
        " 0x1.4bfdaep+0 0x1.5ab07ep+0 0x1.6a09e6p+0 0x1.7a1148p+0 0x1.8ace54p+0 0x1.9c4918p+0"
        " 0x1.ae89fap+0 0x1.c199bep+0 0x1.d5818ep+0 0x1.ea4afap+0"
    ),
    log=_hex(
        "0x1.5555a4p-2 -0x1.00002cp-2 0x1.9968c6p-3 -0x1.54f5aep-3"
        " 0x1.28a1a4p-3 -0x1.0d67c6p-3 0x1.aa6578p-4 -0x1.6ca4bap-5"
    ),
    sin=_hex("-0x1.555556p-3 0x1.111176p-7 -0x1.a05bbap-13 0x1.7cd836p-19"),
    cos=_hex("0x1.55554ap-5 -0x1.6c0c1ap-10 0x1.99e0ecp-16"),
    sinh=_hex("0x1.555556p-3 0x1.110fbep-7 0x1.a2e2f6p-13"),
    cosh=_hex("0x1.000000p-1 0x1.5554e6p-5 0x1.6d4f24p-10"),
    asin=_hex("0x1.5555cap-3 0x1.33016ap-4 0x1.748a2cp-5 0x1.8bb538p-6 0x1.59cc8ep-5"),
    atan=_hex("-0x1.55554ap-2 0x1.9991e2p-3 -0x1.23b98ep-3 0x1.b221b4p-4 -0x1.f2d080p-5"),
    erf=_hex(
        "0x1.06eba8p-3 -0x1.81262ep-2 0x1.cdfd26p-4 -0x1.b4df24p-6"
        " 0x1.3c9d28p-8 -0x1.006b40p-11 -0x1.9181a0p-16"
    ),
    erfc=_hex(
        "0x1.46e80ep+0 -0x1.7bf57ap-4 -0x1.540768p-3 0x1.4ff36ep-3 -0x1.bc379cp-5"
        " -0x1.03bc0ep-7 0x1.1dbddcp-7 0x1.e06140p-11 -0x1.601742p-10"
    ),
    erfc_centre=2.0,
    ln2=(float.fromhex("0x1.62e400p-1"), float.fromhex("0x1.7f7d1cp-20")),
    log2_e=(float.fromhex("0x1.715476p+0"), float.fromhex("0x1.4ae0cp-26")),
    log10_e=(float.fromhex("0x1.bcb7b2p-2"), float.fromhex("-0x1.5b235ep-27")),
    log10_2=(float.fromhex("0x1.344p-2"), float.fromhex("0x1.3509f8p-18")),
    half_pi=_three("0x1.921fb6p+0 -0x1.777a5cp-25 -0x1.ee59dap-50"),
)

_DOUBLE = Fit(
    dtype=f64,
    integer=i64,
    mantissa=52,
    bias=1023,
    exp_limit=746.0,
    sigmoid_limit=60.0,
    tanh_limit=22.0,
    circle_limit=1e9,
    exp=_hex(
        "0x1.0000000000000p-1 0x1.555555555555cp-3 0x1.5555555555556p-5 0x1.111111110e97cp-7"
        " 0x1.6c16c16c15f4bp-10 0x1.a01a01b48fc84p-13 0x1.a01a01a8e1be8p-16"
        " 0x1.71dded9455148p-19 0x1.27e4d4657adb0p-22 0x1.af702a38445afp-26"
        " 0x1.1f824327ba0eep-29"
    ),
    exp_near=_hex(
        "0x1.0000000000005p-1 0x1.555555548eb7bp-3 0x1.555555545dc4ap-5 0x1.11123b4aac2cap-7"
        " 0x1.6c185eac98b9fp-10"
    ),
    powers=_hex(
        "0x1.0000000000000p+0 0x1.0b5586cf9890fp+0 0x1.172b83c7d517bp+0 0x1.2387a6e756238p+0"
        " 0x1.306fe0a31b715p+0 0x1.3dea64c123422p+0 0x1.4bfdad5362a27p+0 0x1.5ab07dd485429p+0"
        " 0x1.6a09e667f3bcdp+0 0x1.7a11473eb0187p+0 0x1.8ace5422aa0dbp+0 0x1.9c49182a3f090p+0"
        " 0x1.ae89f995ad3adp+0 0x1.c199bdd85529cp+0 0x1.d5818dcfba487p+0 0x1.ea4afa2a490dap+0"
    ),
    log=_hex(
        "0x1.555555555554fp-1 0x1.999999999c1adp-2 0x1.24924921e1852p-2 0x1.c71c74920506fp-3"
        " 0x1.745c4a5c28c10p-3 0x1.3b35d034f073cp-3 0x1.0dca9dcf1c8b1p-3 0x1.1b87e5aedd1fbp-3"
    ),
    sin=_hex(
        "-0x1.5555555555549p-3 0x1.111111110f891p-7 -0x1.a01a019c11ebbp-13"
        " 0x1.71de35768c725p-19 -0x1.ae5e647e15562p-26 0x1.5d92508660bf8p-33"
    ),
    cos=_hex(
        "0x1.555555555554cp-5 -0x1.6c16c16c10c4bp-10 0x1.a01a0191b1dfap-16"
        " -0x1.27e4ee1aca7e2p-22 0x1.1ee24558a7f9ep-29 -0x1.8b6882477113ep-37"
    ),
    sinh=_hex(
        "0x1.5555555555559p-3 0x1.111111110f62ap-7 0x1.a01a01b0206e5p-13"
        " 0x1.71ddf7aefd0b5p-19 0x1.af5ff6707411ap-26"
    ),
    cosh=_hex(
        "0x1.0000000000000p-1 0x1.5555555555558p-5 0x1.6c16c16c14ffap-10"
        " 0x1.a01a01ad81067p-16 0x1.27e4cc096ab5cp-22 0x1.1f8bed4b33ba2p-29"
    ),
    asin=_hex(
        "0x1.5555555555578p-3 0x1.333333332df1fp-4 0x1.6db6db722abb8p-5 0x1.f1c71a8beb7e3p-6"
        " 0x1.6e8bdfdca4250p-6 0x1.1c49dec6ed794p-6 0x1.ca2130519ffeep-7 0x1.75783b60b3241p-7"
        " 0x1.6186b2ddf121bp-7 0x1.e19b2996c5e98p-9 0x1.64edb5deb55f0p-6"
        " -0x1.59d8a45fac06ep-6 0x1.0bdab76c62b1dp-5"
    ),
    atan=_hex(
        "-0x1.555555555553dp-2 0x1.9999999995856p-3 -0x1.24924922ac581p-3"
        " 0x1.c71c70e574f35p-4 -0x1.745cf8c5a49c8p-4 0x1.3b11172d86e5dp-4"
        " -0x1.10eb9e9b72828p-4 0x1.df0da35dbdaf7p-5 -0x1.9cca72971ffefp-5"
        " 0x1.37be97ed7c760p-5 -0x1.2533c22b43d7bp-6"
    ),
    erf=_hex(
        "0x1.06eba8214db68p-3 -0x1.812746b03799cp-2 0x1.ce2f21a03f791p-4"
        " -0x1.b82ce311a3341p-6 0x1.565bcceddfed6p-8 -0x1.c02dae8c4adefp-11"
        " 0x1.f9a29253d1062p-14 -0x1.f4c7e71b50eccp-17 0x1.b9686e16d5720p-20"
        " -0x1.5b79ec19afa59p-23 0x1.d35a03b56ba54p-27 -0x1.a0ac53b478898p-31"
    ),
    erfc=_hex(
        "0x1.40c522d7e4987p+0 -0x1.15c084bb9e8ecp-3 -0x1.85a15c58a9c20p-5 0x1.098366a5b4314p-3"
        " -0x1.e88b803a5c453p-4 0x1.17ca28780499fp-4 -0x1.8574c40480a5bp-6 0x1.4b884e135bcbbp-9"
        " 0x1.ef1bd793561a9p-10 -0x1.98db489ade42fp-11 -0x1.b90fe12a946bbp-14"
        " 0x1.065952da475f0p-13 0x1.4b6dafd6b9dc7p-18 -0x1.511d0e13e16e5p-16"
        " -0x1.7851061c64aaep-21 0x1.cf7e3fe3ba159p-19 0x1.44fde1696a369p-22"
        " -0x1.39e10548ff451p-21 -0x1.68bea0fa3de3dp-24 0x1.32af87f1d19a4p-24"
        " 0x1.26d380975eb96p-27"
    ),
    erfc_centre=3.0,
    ln2=(float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")),
    log2_e=(float.fromhex("0x1.71547652b82fep+0"), float.fromhex("0x1.777d0ffda0d24p-56")),
    log10_e=(float.fromhex("0x1.bcb7b1526e50ep-2"), float.fromhex("0x1.95355baaafad3p-57")),
    log10_2=(float.fromhex("0x1.34413509e0000p-2"), float.fromhex("0x1.79fef311f12b3p-38")),
    half_pi=_three("0x1.921fb54442d18p+0 0x1.1a62633145c07p-54 -0x1.f1976b7ed8fbcp-110"),
)

FITS = {"f32": _SINGLE, "f64": _DOUBLE}

EXP2_SINGLE = _hex(
    "0x1.62e430p-1 0x1.ebfbdcp-3 0x1.c6af7ap-5 0x1.3b2dd2p-7 0x1.5f0946p-10 0x1.417a5cp-13"
)
"""(2^f - 1) / f on |f| ≤ ½, for float32."""

EXP2_NEAR = _hex("0x1.62e430p-1 0x1.ebfff6p-3 0x1.c6b30ep-5")
"""(2^f - 1) / f on |f| ≤ 1/32, for float32."""

TANH_SINGLE = _hex("-0x1.555534p-2 0x1.110760p-3 -0x1.b84338p-5 0x1.525030p-6 -0x1.768f46p-8")
"""(tanh x / x - 1) / x² by x² on |x| ≤ 5/8, for float32."""

MIN_TANH, MAX_TANH = 0.0625, 9.125
"""Numbers up to about the first share an interval; beyond the second, tanh rounds to 1."""

TANH_TABLES: tuple[Series, ...] = (
    _hex(
        "0x1.1ffe8p+1 0x1.5ffe74p+1 0x1.a0006ep+1 0x1.e001ecp+1 0x1.2000dcp+2 0x1.6005ecp+2"
        " 0x1.9ff062p+2 0x1.e00f9ep+2 0x1.120f9ep+3 0x1.4p+3 0x1.8p+3 0x1.cp+3 0x0p+0"
        " 0x1.5ffff6p-4 0x1.a0003p-4 0x1.dfff9cp-4 0x1.2000dep-3 0x1.5fffe2p-3 0x1.9fff9ap-3"
        " 0x1.e0061ep-3 0x1.1ffe3ap-2 0x1.600068p-2 0x1.9fff82p-2 0x1.e000eap-2 0x1.2000dcp-1"
        " 0x1.600038p-1 0x1.9fff5ep-1 0x1.dfffbp-1 0x1.20009ap+0 0x1.5fffdap+0 0x1.9fffbp+0"
        " 0x1.e00076p+0"
    ),
    _hex(
        "0x1.f4bf94p-1 0x1.fbd4fp-1 0x1.fe767cp-1 0x1.ff6f1cp-1 0x1.ffdfa8p-1 0x1.fffbap-1"
        " 0x1.ffff68p-1 0x1.ffffecp-1 0x1.fffffep-1 0x1p+0 0x1p+0 0x1p+0 0x0p+0 0x1.5f22c8p-4"
        " 0x1.9e9386p-4 0x1.ddd03p-4 0x1.1e1eaap-3 0x1.5c92eap-3 0x1.9a5ebap-3 0x1.d76c28p-3"
        " 0x1.18a1f6p-2 0x1.52c322p-2 0x1.8a8776p-2 0x1.bfaf28p-2 0x1.050912p-1 0x1.315804p-1"
        " 0x1.5788a6p-1 0x1.77d814p-1 0x1.9e5d2p-1 0x1.c27894p-1 0x1.d9c6e4p-1 0x1.e878b4p-1"
    ),
    _hex(
        "0x1.6418b2p-5 0x1.09ae08p-6 0x1.88ecdp-8 0x1.219f06p-9 0x1.02b9c2p-11 0x1.180126p-14"
        " 0x1.2ff3a4p-17 0x1.4798a6p-20 0x1.35e8f8p-23 0x0p+0 0x0p+0 0x0p+0 0x1p+0 0x1.fc3ccp-1"
        " 0x1.fac13ep-1 0x1.f9085ep-1 0x1.f601bcp-1 0x1.f12b02p-1 0x1.eb7164p-1 0x1.e4df06p-1"
        " 0x1.d98baap-1 0x1.c7f704p-1 0x1.b3ff58p-1 0x1.9e235cp-1 0x1.7aea4p-1 0x1.49e694p-1"
        " 0x1.198046p-1 0x1.d8354p-2 0x1.614eaap-2 0x1.cea7bep-3 0x1.265edep-3 0x1.6fce64p-4"
    ),
    _hex(
        "-0x1.5c42d6p-5 -0x1.07807ep-6 -0x1.87b7d8p-8 -0x1.21477ap-9 -0x1.0256d8p-11"
        " -0x1.17a6a2p-14 -0x1.2eda36p-17 -0x1.c4b632p-20 -0x1.00fbbcp-21 0x0p+0 0x0p+0 0x0p+0"
        " 0x0p+0 -0x1.5c8dap-4 -0x1.9a553cp-4 -0x1.d74e5cp-4 -0x1.1888b6p-3 -0x1.52796ap-3"
        " -0x1.89e4dap-3 -0x1.be71p-3 -0x1.038e2ap-2 -0x1.2dafd8p-2 -0x1.4ff6eep-2"
        " -0x1.6a1d9ap-2 -0x1.825e4p-2 -0x1.897d2ap-2 -0x1.79c13p-2 -0x1.5aa25ep-2 -0x1.1def6p-2"
        " -0x1.970efep-3 -0x1.10653ap-3 -0x1.5ee77ap-4"
    ),
    _hex(
        "0x1.bbd85p-6 0x1.599bfcp-7 0x1.039394p-8 0x1.80da3ap-10 0x1.58419p-12 0x1.74cb34p-15"
        " 0x1.9524d4p-18 0x1.b89f58p-21 0x1.c2d8a4p-24 0x0p+0 0x0p+0 0x0p+0 -0x1.5555a8p-2"
        " -0x1.4beeb2p-2 -0x1.482498p-2 -0x1.43a4ap-2 -0x1.3b2afp-2 -0x1.2ea5bp-2 -0x1.20630ap-2"
        " -0x1.0f8ba2p-2 -0x1.e9253cp-3 -0x1.982c82p-3 -0x1.426bd2p-3 -0x1.d76fe4p-4"
        " -0x1.bcf1c4p-5 0x1.d7870ap-7 0x1.07109ap-4 0x1.84257p-4 0x1.c68f36p-4 0x1.97d7d4p-4"
        " 0x1.33df6ep-4 0x1.a859fp-5"
    ),
    _hex(
        "-0x1.95df8cp-7 -0x1.515dfp-8 -0x1.033e24p-9 -0x1.838f28p-11 -0x1.688f24p-13"
        " -0x1.86cb98p-16 -0x1.b49ae8p-19 0x1.8288b6p-20 0x1.0d0458p-20 0x0p+0 0x0p+0 0x0p+0"
        " 0x1.229e28p-14 0x1.931b76p-5 0x1.3f8a62p-4 0x1.e29334p-5 0x1.604c34p-4 0x1.a06826p-4"
        " 0x1.f2bce2p-4 0x1.06d81cp-3 0x1.32db1ap-3 0x1.501552p-3 0x1.5cc29p-3 0x1.58dfccp-3"
        " 0x1.3a09d6p-3 0x1.e97008p-4 0x1.4781fep-4 0x1.63a5b8p-5 0x1.e07d02p-9 -0x1.59ee48p-6"
        " -0x1.9bb0eep-6 -0x1.55a01p-6"
    ),
    _hex(
        "0x1.04873p-8 0x1.f63f0ep-10 0x1.945dfp-11 0x1.332862p-12 0x1.1faed2p-14 0x1.38a6d8p-17"
        " 0x1.4e4cf4p-20 0x1.6b2184p-23 0x1.5e44e4p-26 0x0p+0 0x0p+0 0x0p+0 0x1.0effcap-3 0x1p+0"
        " 0x1p+0 0x1.fffffap-1 0x1.6e85c8p-2 0x1.edae7cp-4 0x1.8a7734p-1 -0x1.af7ab6p-1"
        " 0x1.0ae83ap-4 -0x1.20a87ep-5 -0x1.8bcae2p-9 0x1.678724p-5 -0x1.6cbd18p-5"
        " -0x1.fbf648p-5 -0x1.d91738p-5 -0x1.9c331cp-5 -0x1.06f5fp-5 -0x1.37661cp-7"
        " 0x1.6ecd34p-10 0x1.2e9d54p-8"
    ),
)
"""Tables for each quarter octave, for float32.

They are indexed by the last three bits of the exponent and the first two of the fraction: a centre
c whose tanh is very nearly a float32, tanh c, then the coefficients of (tanh(c + d) - tanh c) / d
by d.  The lowest centre is 0."""

ERF_SINGLE = _hex(
    "0x1.20dd76p+0 -0x1.f7ac92p-25 0x1.45f2fep-1 0x1.a4f95ep-4 -0x1.39c0dcp-6"
    " -0x1.5b06aep-13 0x1.b63526p-10 -0x1.4d000ep-11 0x1.eff2d2p-14 -0x1.38b87cp-17"
)
"""2/√π in two parts, then (-ln erfc(a) / a - 2/√π) / a on [0, 4], for float32."""

ERF_STEP = 17 / 64
"""Distance of the points in `ERF_TABLES`."""

ERF_TABLES: tuple[Series, ...] = (
    _hex(
        "0x0p+0 0x1.2bd9dcp-2 0x1.1855a6p-1 0x1.7b0058p-1 0x1.bbef1p-1 0x1.e11a3ep-1"
        " 0x1.f39bc2p-1 0x1.fb9f6p-1 0x1.fea422p-1 0x1.ffa14ap-1 0x1.ffe96ap-1 0x1.fffb4ap-1"
        " 0x1.ffff24p-1 0x1.ffffdep-1 0x1.fffffcp-1 0x1p+0"
    ),
    _hex(
        "0x1.06eba8p-3 0x1.0d2fa8p+0 0x1.b3aafep-1 0x1.32281ep-1 0x1.75a91ap-2 0x1.8c0732p-3"
        " 0x1.6c7e64p-4 0x1.2351c4p-5 0x1.94624ep-7 0x1.e7744ap-9 0x1.fe41cep-11 0x1.cfd4a6p-13"
        " 0x1.6e2368p-15 0x1.f5f7dap-18 0x1.2acee4p-20 0x1.bd447p-18"
    ),
    _hex(
        "0x1.52e994p-22 -0x1.1e025cp-2 -0x1.cee40ep-2 -0x1.e7f08ep-2 -0x1.8d04f4p-2"
        " -0x1.06fbep-2 -0x1.227464p-3 -0x1.0ee0d2p-4 -0x1.adc038p-6 -0x1.23a066p-7"
        " -0x1.51fab4p-9 -0x1.51d604p-11 -0x1.1db42p-13 -0x1.45936ep-15 -0x1.048d18p-16"
        " 0x1.97f33ep-12"
    ),
    _hex(
        "-0x1.812bc4p-2 -0x1.344e64p-2 -0x1.fa1176p-4 0x1.b8d856p-5 0x1.3953fcp-3 0x1.4db374p-3"
        " 0x1.efba98p-4 0x1.1f2be2p-4 0x1.0ea512p-5 0x1.a7af0ap-7 0x1.16bfdep-8 0x1.36a542p-10"
        " 0x1.26b614p-12 0x1.ddc7c2p-15 0x1.4bcd12p-17 0x1.0ccaf6p-7"
    ),
    _hex(
        "0x1.4880eap-12 0x1.0eee32p-3 0x1.7567bp-3 0x1.18e578p-3 0x1.8cabb8p-5 -0x1.6ee9dp-6"
        " -0x1.90cb4ep-5 -0x1.5bf426p-5 -0x1.ab2bc6p-6 -0x1.8a5d4cp-7 -0x1.549056p-8"
        " -0x1.ad8a88p-10 -0x1.2b6e0ap-11 0x1.5094b4p-11 0x1.4843bap-11 0x1.20cd9ap-4"
    ),
    _hex(
        "0x1.c60954p-4 0x1.3eae8ep-4 -0x1.147f2ep-10 -0x1.e4e226p-5 -0x1.0e3a2ap-4"
        " -0x1.2ed298p-5 -0x1.52cc24p-8 0x1.66b0eep-7 0x1.97de78p-7 0x1.088d92p-7 0x1.f5c916p-9"
        " 0x1.7683dcp-10 0x1.c675a8p-12 0x1.c85ddap-14 0x1.7f6c0cp-16 0x1.b2ae8p-3"
    ),
)
"""Tables for 16 points c in steps of `ERF_STEP`, for float32.

erf c, then the coefficients of (erf(c + d) - erf c) / d by d, up to half a step to either side;
around 0 those of (erf d - d) / d."""

LOG2_MIXED = _hex(
    "0x1.71547652d8597p+1 0x1.ec709b53c757cp-1 0x1.2778a8481eebep-1"
    " 0x1.a51253724dfc0p-2 0x1.64cf2b8331f1ap-2"
)
"""log2((1+s)/(1-s)) / s by s², good to 35 bits: for float32 powers computed in float64."""

EXP2_MIXED = _hex(
    "0x1.62e430b03a98fp-1 0x1.ebfbdc35c0e80p-3 0x1.c6aee6eb76966p-5"
    " 0x1.3b2d4fee9ba2dp-7 0x1.5f3f2fd41e84bp-10 0x1.41fb084effcefp-13"
)
"""(2^f - 1) / f on |f| ≤ ½, good to 28 bits: for float32 powers computed in float64."""

LOG_TABLE_POINTS_PER_UNIT = 20
"""Points per unit of the logarithm tables, which cover ¾ to 3/2."""

LOG_TABLE_INVERSES = _hex(
    "0x1.0000000000000p+0 0x1.e785819b75c86p-1 0x1.d1706a366d2cbp-1 0x1.bd4db8b162b90p-1"
    " 0x1.aaa3a098e92ddp-1 0x1.99b0177cd8890p-1 0x1.89f0cdda6c12ep-1 0x1.7b5059ed62b39p-1"
    " 0x1.6da12b8cd8e32p-1 0x1.612b7f9f3130bp-1 0x1.583be599ac25dp-1 0x1.4fbb192e61923p+0"
    " 0x1.3ff2a78b69521p+0 0x1.2d1dc0ef249d0p+0 0x1.1c6dd87810f7ep+0 0x1.0d6d4bb1ecc8cp+0"
)
"""About 1 / (1 + j/20) for j from -5 to 10, indexed by the last four bits of j.

Each is a number whose logarithm is accurate to 2^-68 in `LOG_TABLE_LOGS`."""

LOG_TABLE_LOGS = _hex(
    "0x0p+0 0x1.9153ed463b0c0p-5 0x1.8686b77426366p-4 0x1.1dd6001848e89p-3"
    " 0x1.7586cb54790efp-3 0x1.c88f0a1fc187ep-3 0x1.0c6a55a7bc74dp-2 0x1.3328df5f5fe2ep-2"
    " 0x1.58c8e8a09ead3p-2 0x1.7c49d0dc8809dp-2 0x1.9687f7808f21bp-2 -0x1.15a3b8c99047ap-2"
    " -0x1.c8aa11611a214p-3 -0x1.4c6dd6bda583bp-3 -0x1.af55e206ff3b5p-4 -0x1.a2c5fdfc882c0p-5"
)
"""-ln of the numbers in `LOG_TABLE_INVERSES`."""

LOG_TABLE_LOG2S = _hex(
    "0x0p+0 0x1.217f31053993bp-4 0x1.19b4839172f09p-3 0x1.9c5fc478094dap-3"
    " 0x1.0d7143fa26ed9p-2 0x1.495667c646ac3p-2 0x1.833dd46aa057ap-2 0x1.bb234159db8ddp-2"
    " 0x1.f16b5897dd112p-2 0x1.1251ef05a7fccp-1 0x1.25400e21c64f7p-1 -0x1.908c9766587a5p-2"
    " -0x1.4969e6f64ec94p-2 -0x1.df980037dd247p-3 -0x1.37248d2b9b1c2p-3 -0x1.2e14c6cf75774p-4"
)
"""-log2 of the numbers in `LOG_TABLE_INVERSES`."""

LOG_TABLE_TAIL = _hex(
    "-0x1.fffffffffffc8p-2 0x1.5555555555495p-2 -0x1.00000000be8fdp-2 0x1.9999999c8e822p-3"
    " -0x1.55553fc563353p-3 0x1.24922ac08fad4p-3 -0x1.00733d30a55cap-3 0x1.c81a27fd9724ep-4"
)
"""(ln(1+r) - r) / r² on |r| ≤ 1/32, good to 56 bits of ln(1+r)."""

LOG_TABLE_TAIL_POWER = _hex(
    "-0x1.5555555555555p-1 0x1.ffffffffffed7p-2 -0x1.9999999999563p-2 0x1.55555557aeb96p-2"
    " -0x1.2492492940ae1p-2 0x1.ffffcd7afff02p-3 -0x1.c71c2a6683655p-3 0x1.9a77121963c76p-3"
    " -0x1.75530ad1d271bp-3"
)
"""-2 (ln(1+r) - r + r²/2) / r³ on |r| ≤ 1/32, good to 68 bits of ln(1+r)."""

LOG_TABLE_LOG2_MIXED = _hex(
    "0x1.71547652bed45p+0 -0x1.71547652fdcacp-1 0x1.ec70964e91656p-2 -0x1.71546891c7d20p-2"
    " 0x1.27c622f73a839p-2 -0x1.ed29aed88e2e8p-3"
)
"""log2(1+r) / r on |r| ≤ 1/32, good to 37 bits: for float32 powers computed in float64."""
