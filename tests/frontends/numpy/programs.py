"""Ordinary programs of NumPy's users, as functions of the namespace `np`.

Each makes its data, computes and returns arrays or numbers.  Data come from NumPy's own generator,
so that both namespaces see the same.
"""

from __future__ import annotations

from typing import Any

import numpy  # noqa: ICN001 - `np` is either namespace

__all__ = ["PROGRAMS"]


def _rng(seed: int = 0) -> Any:
    return numpy.random.default_rng(seed)


def image_filters(np: Any, n: int = 64) -> Any:
    """Blur, edges and a threshold of a grey image."""
    image = np.array(_rng().integers(0, 256, (n, n, 3)), dtype=np.uint8)
    grey = image.astype(np.float32) @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    padded = np.pad(grey, 1, mode="edge")
    blurred = sum(padded[i : i + n, j : j + n] for i in range(3) for j in range(3)) / 9
    gx, gy = np.gradient(blurred)
    edges = np.hypot(gx, gy)
    mask = edges > edges.mean() + edges.std()
    out = np.clip(blurred * 1.2 + 10, 0, 255).astype(np.uint8)
    levels = np.percentile(edges, [5, 50, 95]).astype(np.float32)  # as exact as the image
    return edges, mask.sum(), out, np.flipud(out)[:2], levels


def k_means(np: Any, n: int = 300) -> Any:
    """Lloyd's algorithm."""
    x = np.array(_rng(1).normal(size=(n, 2)) + _rng(2).integers(0, 3, (n, 1)) * 4)
    centres = x[:3].copy()
    for _ in range(6):
        distance = ((x[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)
        labels = distance.argmin(axis=1)
        for k in range(3):
            members = x[labels == k]
            if len(members):
                centres[k] = members.mean(axis=0)
    return centres, labels, np.bincount(labels, minlength=3)


def n_body(np: Any, n: int = 40) -> Any:
    """Gravitation with softening, by leapfrog steps."""
    rng = _rng(3)
    position, velocity = np.array(rng.normal(size=(n, 3))), np.zeros((n, 3))
    mass = np.array(rng.uniform(0.5, 1.5, n))
    for _ in range(4):
        d = position[None, :, :] - position[:, None, :]
        inverse = ((d**2).sum(-1) + 0.01) ** -1.5
        force = (d * (mass[None, :] * inverse)[:, :, None]).sum(axis=1)
        velocity += 0.01 * force
        position += 0.01 * velocity
    energy = 0.5 * np.sum(mass * np.sum(velocity**2, axis=1))
    return position, velocity, energy


def heat(np: Any, n: int = 48) -> Any:
    """An explicit step of the heat equation, in place."""
    u = np.zeros((n, n))
    u[n // 4 : n // 2, n // 4 : n // 2] = 100.0
    for _ in range(20):
        lap = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
        u[1:-1, 1:-1] += 0.1 * lap
    return u, u.max(), np.unravel_index(int(u.argmax()), u.shape)


def logistic_regression(np: Any, n: int = 200) -> Any:
    """Gradient descent with a test of accuracy."""
    rng = _rng(4)
    x = np.array(rng.normal(size=(n, 3)))
    y = (x @ np.array([1.5, -2.0, 0.5]) + 0.1 > 0).astype(float)
    x1 = np.hstack([np.ones((n, 1)), x])
    w = np.zeros(4)
    for _ in range(30):
        p = 1 / (1 + np.exp(-x1.dot(w)))
        w -= 0.5 * x1.T.dot(p - y) / len(y)
    loss = -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))
    return w, loss, ((p > 0.5) == y).mean()


def principal_components(np: Any, n: int = 120) -> Any:
    """PCA by the covariance's eigenvectors."""
    x = np.array(_rng(5).normal(size=(n, 4)) @ _rng(6).normal(size=(4, 4)))
    centred = x - x.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(centred, rowvar=False))
    order = np.argsort(values)[::-1]
    values, vectors = values[order], vectors[:, order]
    vectors = vectors * np.sign(vectors[0])
    scores = centred @ vectors[:, :2]
    return values / values.sum(), scores.std(axis=0, ddof=1), np.cumsum(values)


def rolling_means(np: Any, n: int = 250) -> Any:
    """Moving averages, returns and drawdown of a price."""
    price = 100 * np.exp(np.cumsum(np.array(_rng(7).normal(0, 0.01, n))))
    total = np.cumsum(np.insert(price, 0, 0.0))
    average = (total[20:] - total[:-20]) / 20
    smooth = np.convolve(price, np.ones(5) / 5, mode="valid")
    returns = np.diff(price) / price[:-1]
    windows = np.lib.stride_tricks.sliding_window_view(price, 10)
    drawdown = (price / np.maximum.accumulate(price) - 1).min()
    return average, smooth, returns.std(ddof=1) * np.sqrt(252), windows.max(axis=-1), drawdown


def monte_carlo(np: Any, n: int = 2000) -> Any:
    """A quarter of a circle, and a random walk."""
    x, y = np.array(_rng(8).random(n)), np.array(_rng(9).random(n))
    inside = np.sqrt(x**2 + y**2) <= 1
    steps = np.where(np.array(_rng(10).random(n)) < 0.5, -1, 1)
    walk = steps.cumsum()
    return 4 * inside.mean(), walk.min(), walk.max(), np.abs(walk).argmax()


def spectrum_filter(np: Any, n: int = 256) -> Any:
    """Remove high frequencies by a transform."""
    t = np.arange(n) / n
    signal = np.sin(2 * np.pi * 5 * t) + 0.5 * np.sin(2 * np.pi * 60 * t)
    spectrum = np.fft.rfft(signal)
    frequency = np.fft.rfftfreq(n, d=1 / n)
    power = np.abs(spectrum) ** 2
    spectrum[frequency > 30] = 0
    clean = np.fft.irfft(spectrum, n)
    return power, clean, frequency[np.argmax(power)]


def search(np: Any, n: int = 60) -> Any:
    """Nearest neighbours by cosine similarity."""
    rng = _rng(11)
    documents, query = np.array(rng.normal(size=(n, 16))), np.array(rng.normal(size=16))
    unit = documents / np.linalg.norm(documents, axis=1, keepdims=True)
    scores = unit @ (query / np.linalg.norm(query))
    best = np.argsort(-scores)[:5]
    return best, scores[best], np.argpartition(-scores, 5)[:5].shape


def histograms(np: Any, n: int = 500) -> Any:
    """Counts, densities and digitised values."""
    x = np.array(_rng(12).normal(size=n))
    counts, edges = np.histogram(x, bins=12)
    density, _ = np.histogram(x, bins=12, density=True)
    which = np.digitize(x, edges[1:-1])
    centres = (edges[:-1] + edges[1:]) / 2
    return counts, density, np.bincount(which, minlength=12), np.average(centres, weights=counts)


def game_of_life(np: Any, n: int = 32) -> Any:
    """Generations on a torus, by rolled copies."""
    board = np.array(_rng(13).integers(0, 2, (n, n)), dtype=np.int8)
    for _ in range(8):
        around = sum(
            np.roll(np.roll(board, i, axis=0), j, axis=1)
            for i in (-1, 0, 1)
            for j in (-1, 0, 1)
            if (i, j) != (0, 0)
        )
        board = ((around == 3) | ((board == 1) & (around == 2))).astype(np.int8)
    return board, board.sum(), np.argwhere(board)[:5]


def quantiles(np: Any, n: int = 400) -> Any:
    """A summary of columns, with missing values."""
    x = np.array(_rng(14).normal(size=(n, 3)))
    x[::7, 1] = np.nan
    summary = np.vstack([np.nanmean(x, axis=0), np.nanstd(x, axis=0), np.nanmedian(x, axis=0)])
    filled = np.where(np.isnan(x), np.nanmean(x, axis=0), x)
    q1, q3 = np.quantile(filled, [0.25, 0.75], axis=0)
    outliers = (filled < q1 - 1.5 * (q3 - q1)) | (filled > q3 + 1.5 * (q3 - q1))
    return summary, q3 - q1, outliers.sum(axis=0), np.count_nonzero(np.isnan(x)), np.ptp(filled, 0)


def least_squares(np: Any, n: int = 50) -> Any:
    """Fit a polynomial in two ways."""
    x = np.linspace(-1, 1, n)
    y = 2 * x**2 - x + 0.5 + 0.01 * np.array(_rng(15).normal(size=n))
    coefficients = np.polyfit(x, y, 2)
    design = np.vander(x, 3)
    solution, *_ = np.linalg.lstsq(design, y, rcond=None)
    residual = y - np.polyval(coefficients, x)
    return coefficients, solution, (residual**2).sum(), 1 - residual.var() / y.var()


def mandelbrot(np: Any, n: int = 40) -> Any:
    """Escape times with real and imaginary parts apart."""
    cx, cy = np.meshgrid(np.linspace(-2, 0.5, n), np.linspace(-1.2, 1.2, n))
    x, y, count = np.zeros_like(cx), np.zeros_like(cy), np.zeros(cx.shape, dtype=int)
    for _ in range(20):
        inside = x * x + y * y <= 4
        x, y = np.where(inside, x * x - y * y + cx, x), np.where(inside, 2 * x * y + cy, y)
        count[inside] += 1
    return count, count.max(), np.unique(count).size


def distances(np: Any, n: int = 40) -> Any:
    """Distances of pairs, and those of neighbours on the globe."""
    rng = _rng(16)
    points = np.array(rng.normal(size=(n, 3)))
    d = np.sqrt(((points[:, np.newaxis] - points[np.newaxis]) ** 2).sum(-1))
    np.fill_diagonal(d, np.inf)
    nearest = d.min(axis=1)
    lat, lon = (
        np.radians(np.array(rng.uniform(-60, 60, n))),
        np.deg2rad(np.array(rng.uniform(0, 90, n))),
    )
    a = (
        np.sin(np.diff(lat) / 2) ** 2
        + np.cos(lat[1:]) * np.cos(lat[:-1]) * np.sin(np.diff(lon) / 2) ** 2
    )
    return (
        nearest,
        d.argmin(axis=1),
        2 * 6371 * np.arcsin(np.sqrt(a)),
        d[np.triu_indices(n, 1)].mean(),
    )


def neural_network(np: Any, n: int = 64) -> Any:
    """Two layers with their gradients by hand."""
    rng = _rng(17)
    x, target = np.array(rng.normal(size=(n, 5))), np.array(rng.integers(0, 3, n))
    w1, b1 = np.array(rng.normal(size=(5, 8))) * 0.5, np.zeros(8)
    w2, b2 = np.array(rng.normal(size=(8, 3))) * 0.5, np.zeros(3)
    onehot = np.eye(3)[target]
    for _ in range(5):
        hidden = np.maximum(x @ w1 + b1, 0)
        logits = hidden @ w2 + b2
        e = np.exp(logits - logits.max(axis=1, keepdims=True))
        p = e / e.sum(axis=1, keepdims=True)
        loss = -np.log(p[np.arange(n), target]).mean()
        back = (p - onehot) / n
        grad_hidden = (back @ w2.T) * (hidden > 0)
        w2 -= 0.5 * hidden.T @ back
        b2 -= 0.5 * back.sum(0)
        w1 -= 0.5 * x.T @ grad_hidden
        b1 -= 0.5 * grad_hidden.sum(0)
    return loss, w1, w2, p.argmax(1)


def linear_systems(np: Any, n: int = 12) -> Any:
    """Solve, invert and decompose."""
    a = np.array(_rng(18).normal(size=(n, n)))
    a = a @ a.T + n * np.eye(n)
    b = np.ones(n)
    x = np.linalg.solve(a, b)
    factor = np.linalg.cholesky(a)
    u, s, vt = np.linalg.svd(a)
    rebuilt = (u * s) @ vt
    return (
        x,
        np.allclose(a @ x, b),
        factor.diagonal(),
        s,
        np.abs(rebuilt - a).max() < 1e-9,
        np.trace(a),
    )


def table_of_groups(np: Any, n: int = 200) -> Any:
    """Means of groups, sorted, as a data frame would."""
    rng = _rng(19)
    key, amount = np.array(rng.integers(0, 6, n)), np.array(rng.uniform(1, 9, n))
    names, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
    totals = np.bincount(inverse, weights=amount)
    sums = np.zeros(len(names))
    np.add.at(sums, inverse, amount)
    order = np.lexsort((amount, key))
    first = np.searchsorted(key[order], names)
    return names, totals / counts, sums, amount[order][first], np.isin(key, [1, 2]).sum()


def notebook(np: Any, n: int = 100) -> Any:
    """What a first notebook does with an array."""
    a = np.arange(n).reshape(10, -1)
    b = a.T.copy()
    b[b % 3 == 0] = -1
    b[0, :] *= 2
    text = f"{a.mean():.2f} {a[1, 2]:d} {np.float32(0.5):.1f}"
    rows = [row.sum().item() for row in a]
    stacked = np.concatenate([a, b], axis=1)
    parts = np.split(stacked, 4, axis=1)
    pairs = [(i, float(v)) for i, v in enumerate(a[0] / 2)]
    return (
        text,
        rows,
        stacked.shape,
        parts[1],
        pairs,
        a.tolist()[0],
        np.round(b.std(axis=0), 2),
        a.ravel()[-3:],
    )


def interpolation(np: Any, n: int = 50) -> Any:
    """Resample, integrate and differentiate a curve."""
    x = np.linspace(0, 10, n)
    y = np.sin(x) * np.exp(-0.1 * x)
    fine = np.linspace(0, 10, 4 * n)
    resampled = np.interp(fine, x, y)
    slope = np.gradient(y, x[1] - x[0])
    crossings = np.where(np.diff(np.sign(y)) != 0)[0]
    return resampled, np.trapezoid(y, x), slope, crossings, np.argmax(y), np.exp(-0.03)


PROGRAMS = [
    image_filters,
    k_means,
    n_body,
    heat,
    logistic_regression,
    principal_components,
    rolling_means,
    monte_carlo,
    spectrum_filter,
    search,
    histograms,
    game_of_life,
    quantiles,
    least_squares,
    mandelbrot,
    distances,
    neural_network,
    linear_systems,
    table_of_groups,
    notebook,
    interpolation,
]
"""All programs."""
