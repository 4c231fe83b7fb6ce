"""Longer programs of NumPy's users, for `python -m tools.numpy_programs`.

The command replaces the line that imports NumPy.  Each function takes a size and returns arrays or
numbers.  Data come from NumPy's own generator, as arrays of the namespace.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import default_rng

__all__ = ["SCRIPTS"]


class _Draws:
    """NumPy's random generator, which gives the namespace's arrays."""

    def __init__(self, seed: int) -> None:
        self.generator = default_rng(seed)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.generator, name)

        def draw(*args: Any, **options: Any) -> Any:
            drawn = method(*args, **options)
            return np.asarray(drawn) if hasattr(drawn, "shape") and drawn.shape else drawn

        return draw


def filters(n: int = 480) -> Any:
    """Blur, edges, median, equalisation, threshold and gamma of an image."""
    yy, xx = np.mgrid[0:n, 0 : n * 4 // 3]
    noise = 10 * _Draws(1).standard_normal(xx.shape)
    image = (120 + 80 * np.sin(xx / 23.0) * np.cos(yy / 17.0) + noise).clip(0, 255)
    image = image.astype(np.uint8)

    def convolve(img: Any, kernel: Any) -> Any:
        kh, kw = kernel.shape
        padded = np.pad(img.astype(float), ((kh // 2, kh // 2), (kw // 2, kw // 2)), mode="edge")
        out = np.zeros(img.shape)
        for i in range(kh):
            for j in range(kw):
                out += kernel[i, j] * padded[i : i + img.shape[0], j : j + img.shape[1]]
        return out

    ax = np.arange(7) - 3
    gauss = np.exp(-(ax[:, None] ** 2 + ax[None, :] ** 2) / 4.5)
    blurred = convolve(image, gauss / gauss.sum())
    gx = convolve(blurred, np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]))
    gy = convolve(blurred, np.array([[-1, -2, -1], [0, 0, 0], [1, 2, 1]]))
    edges = np.hypot(gx, gy)
    edges *= 255.0 / edges.max()
    padded = np.pad(image, 1, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3))
    median = np.median(windows.reshape(*image.shape, 9), axis=-1)
    hist, _ = np.histogram(image.flatten(), 256, [0, 256])
    cdf = hist.cumsum()
    cdf = (cdf - cdf.min()) * 255 / (cdf.max() - cdf.min())
    share = np.bincount(image.ravel(), minlength=256) / image.size
    w0, mu = np.cumsum(share), np.cumsum(share * np.arange(256))
    with np.errstate(divide="ignore", invalid="ignore"):
        between = (mu[-1] * w0 - mu) ** 2 / (w0 * (1 - w0))
    threshold = int(np.nanargmax(between))
    sharp = np.clip(image + 0.7 * (image - blurred), 0, 255).astype(np.uint8)
    gamma = (255 * (image / 255.0) ** 0.45).round().astype(np.uint8)
    flipped = image[::-1, ::-1].copy()
    flipped[100:200, 100:200] = 0
    equal = cdf.astype("uint8")[image]
    return blurred, edges, median, equal, threshold, image > threshold, sharp, gamma, flipped


def kalman(n: int = 150) -> Any:
    """A Kalman filter for a point in the plane, and a smoother that runs backwards."""
    rng, dt = _Draws(2), 0.1
    F = np.eye(4)
    F[0, 2] = F[1, 3] = dt
    H = np.array([[1, 0, 0, 0], [0, 1, 0, 0]], dtype=float)
    Q, R = 0.05 * np.diag([dt**2, dt**2, 1, 1]), 0.5 * np.eye(2)
    truth = np.zeros((n, 4))
    truth[0] = [0, 0, 1, 0.5]
    scale = np.array([dt, dt, 1, 1]) * 0.05**0.5
    for k in range(1, n):
        truth[k] = F @ truth[k - 1] + scale * rng.normal(size=4)
    z = truth[:, :2] + rng.normal(0, 0.5**0.5, size=(n, 2))
    x, P = np.zeros(4), np.eye(4) * 10
    means, covs = [], []
    likelihood = 0.0
    for k in range(n):
        x = F @ x
        P = F @ P @ F.T + Q
        y = z[k] - H @ x
        S = H @ P @ H.T + R
        K = P @ H.T @ np.linalg.inv(S)
        x = x + K @ y
        P = (np.eye(4) - K @ H) @ P
        likelihood += -0.5 * (y @ np.linalg.solve(S, y) + np.log(np.linalg.det(2 * np.pi * S)))
        means.append(x.copy())
        covs.append(P.copy())
    means, covs = np.array(means), np.array(covs)
    smooth = means.copy()
    for k in range(n - 2, -1, -1):
        G = covs[k] @ F.T @ np.linalg.inv(F @ covs[k] @ F.T + Q)
        smooth[k] = means[k] + G @ (smooth[k + 1] - F @ means[k])
    return means, covs, smooth, np.sqrt(np.mean((means[:, :2] - truth[:, :2]) ** 2)), likelihood


def metropolis(n: int = 200) -> Any:
    """Metropolis sampling of a linear regression, with diagnostics."""
    rng = _Draws(3)
    x = rng.uniform(-2, 2, n)
    y = 1.3 + 0.7 * x + rng.normal(0, 0.5, size=n)

    def log_posterior(theta: Any) -> Any:
        a, b, log_s = theta
        resid = y - (a + b * x)
        likelihood = -0.5 * np.sum((resid / np.exp(log_s)) ** 2) - n * log_s
        return likelihood - 0.5 * (a**2 + b**2) / 100 - 0.5 * log_s**2

    chain = np.empty((1500, 3))
    theta = np.array([0.0, 0.0, 0.0])
    current, accepted = log_posterior(theta), 0
    for i in range(1500):
        proposal = theta + rng.normal(scale=0.06, size=3)
        new = log_posterior(proposal)
        if np.log(rng.random()) < new - current:
            theta, current = proposal, new
            accepted += 1
        chain[i] = theta
    kept = chain[500:]
    low, high = np.percentile(kept, [2.5, 97.5], axis=0)
    v = kept[:, 0] - kept[:, 0].mean()
    full = np.correlate(v, v, mode="full")[len(v) - 1 :]
    rho = full[:50] / full[0]
    counts, edges = np.histogram(kept[:, 1], bins=20, density=True)
    return kept.mean(axis=0), kept.std(axis=0, ddof=1), low, high, rho, counts, edges, accepted


def life(n: int = 256) -> Any:
    """Conway's game of life by rolling a board, and by slices of a padded one."""
    board = (_Draws(4).random((n // 4, n // 4)) < 0.3).astype(int)
    near = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
    alive = []
    for _ in range(60):
        count = sum(np.roll(np.roll(board, i, 0), j, 1) for i, j in near)
        board = ((count == 3) | ((board == 1) & (count == 2))).astype(int)
        alive.append(int(board.sum()))
    soup = (_Draws(5).random((n, n)) < 0.3).astype(np.uint8)
    ages = np.zeros(soup.shape, dtype=np.int64)
    for _ in range(30):
        p = np.pad(soup, 1)
        count = p[:-2, :-2] + p[:-2, 1:-1] + p[:-2, 2:] + p[1:-1, :-2]
        count = count + p[1:-1, 2:] + p[2:, :-2] + p[2:, 1:-1] + p[2:, 2:]
        new = np.zeros_like(soup)
        new[(soup == 1) & ((count == 2) | (count == 3))] = 1
        new[(soup == 0) & (count == 3)] = 1
        soup = new
        ages = np.where(soup, ages + 1, 0)
    return board, alive, soup, ages, np.unravel_index(int(ages.argmax()), ages.shape)


def fractals(n: int = 300) -> Any:
    """Mandelbrot and Julia sets by boolean indexing, and Newton's basins."""
    A, B = np.meshgrid(np.linspace(-2.5, 1.5, n * 4 // 3), np.linspace(-1.5, 1.5, n))
    C = A + B * 1j
    z = np.zeros_like(C)
    time = 40 + np.zeros(z.shape, dtype=int)
    for i in range(40):
        z = z**2 + C
        diverge = abs(z) > 2
        time[diverge & (time == 40)] = i
        z[diverge] = 2
    y, x = np.ogrid[-1.4 : 1.4 : n * 1j, -1.4 : 1.4 : n * 4 // 3 * 1j]
    z = x + y * 1j
    count, alive = np.zeros(z.shape, dtype=int), np.ones(z.shape, dtype=bool)
    for _ in range(40):
        z[alive] = z[alive] ** 2 + (-0.4 + 0.6j)
        alive[np.abs(z) > 2] = False
        count[alive] += 1
    t = np.linspace(-2, 2, n * 2 // 3)
    z = t[None, :] + 1j * t[:, None] + 1e-9
    for _ in range(15):
        z = z - (z**3 - 1) / (3 * z**2)
    roots = np.exp(2j * np.pi * np.arange(3) / 3)
    return time, count, np.argmin(np.abs(z[..., None] - roots), axis=-1)


def spectra(n: int = 4000) -> Any:
    """A low pass, convolution by transforms, a spectrogram, a delay and an envelope."""
    t = np.arange(0, n) / 1000
    signal = np.sin(2 * np.pi * 50 * t) + 0.5 * np.sin(2 * np.pi * 120 * t)
    signal = signal + 0.3 * _Draws(6).standard_normal(t.size)
    spectrum = np.fft.rfft(signal)
    freq = np.fft.rfftfreq(signal.size, d=1 / 1000)
    power = np.abs(spectrum) ** 2 / signal.size
    filtered = spectrum.copy()
    filtered[freq > 80] = 0
    low = np.fft.irfft(filtered, n=signal.size)
    kernel = np.hamming(101)
    kernel /= np.sum(kernel)
    length = len(signal) + 100
    size = 2 ** int(np.ceil(np.log2(length)))
    smooth = np.fft.irfft(np.fft.rfft(signal, size) * np.fft.rfft(kernel, size), size)[:length]
    window = np.hanning(256)
    frames = np.stack([signal[s : s + 256] * window for s in range(0, n - 255, 128)])
    spec = 20 * np.log10(np.abs(np.fft.rfft(frames, axis=1)).T + 1e-12)
    delayed = np.fft.fft(np.roll(signal, 37)) * np.conj(np.fft.fft(signal))
    lag = int(np.argmax(np.fft.ifft(delayed).real))
    analytic = np.fft.fft(signal)
    analytic[1 : n // 2] *= 2
    analytic[n // 2 + 1 :] = 0
    envelope = np.abs(np.fft.ifft(analytic))
    return power, low, smooth, spec, lag, envelope, np.sort(freq[np.argsort(power)[-2:]])


def components(n: int = 2000) -> Any:
    """Principal components by SVD and eigenvectors, compression, least squares."""
    rng = _Draws(7)
    latent = rng.normal(size=(n, 3))
    X = latent @ rng.normal(size=(3, 40)) + 0.1 * rng.normal(size=(n, 40))
    mu, sd = X.mean(axis=0), X.std(axis=0)
    Xc = (X - mu) / sd
    _, S, Vt = np.linalg.svd(Xc, full_matrices=False)
    signs = np.sign(Vt[np.arange(len(Vt)), np.abs(Vt).argmax(axis=1)])
    Vt *= signs[:, np.newaxis]
    restored = Xc @ Vt[:3].T @ Vt[:3] * sd + mu
    values, vectors = np.linalg.eigh(np.cov(Xc, rowvar=False))
    order = np.argsort(values)[::-1]
    values, vectors = values[order], vectors[:, order]
    k = int(np.searchsorted(np.cumsum(values) / values.sum(), 0.95)) + 1
    white = Xc @ vectors[:, :3] / np.sqrt(values[:3])
    corr = np.corrcoef(X.T)
    target = latent @ np.array([1.0, -2.0, 0.5]) + 3
    A = np.column_stack([np.ones(len(X)), X])
    beta, _, rank, _ = np.linalg.lstsq(A, target, rcond=None)
    ridge = np.linalg.solve(A.T @ A + 1e-3 * np.eye(A.shape[1]), A.T @ target)
    upper = corr[np.triu_indices_from(corr, k=1)]
    q, r = np.linalg.qr(A)
    share = S**2 / np.sum(S**2)
    return share, restored, values, k, np.cov(white.T), upper, A @ beta, int(rank), A @ ridge, q @ r


def neighbours(n: int = 1200) -> Any:
    """K nearest neighbours, votes, a confusion matrix and cross validation."""
    rng = _Draws(8)
    y = rng.integers(0, 4, size=n)
    X = rng.uniform(-5, 5, (4, 8))[y] + rng.normal(scale=2.0, size=(n, 8))
    perm = rng.permutation(n)
    train, test = perm[: n * 3 // 4], perm[n * 3 // 4 :]
    Xtr, ytr, Xte, yte = X[train], y[train], X[test], y[test]

    def distances(a: Any, b: Any) -> Any:
        square = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a.dot(b.T)
        return np.sqrt(np.maximum(square, 0))

    def predict(a: Any, b: Any, labels: Any) -> Any:
        votes = labels[np.argpartition(distances(a, b), 7, axis=1)[:, :7]]
        return np.apply_along_axis(lambda v: np.bincount(v, minlength=4).argmax(), 1, votes)

    pred = predict(Xte, Xtr, ytr)
    confusion = np.zeros((4, 4), dtype=int)
    np.add.at(confusion, (yte, pred), 1)
    precision = np.diag(confusion) / confusion.sum(axis=0)
    slow = np.linalg.norm(Xte[:50, None, :] - Xtr[None, :200, :], axis=2)
    scores = []
    for fold in np.array_split(np.arange(len(Xtr)), 5):
        rest = np.setdiff1d(np.arange(len(Xtr)), fold)
        scores.append(np.mean(predict(Xtr[fold], Xtr[rest], ytr[rest]) == ytr[fold]))
    weights = 1 / (np.sort(distances(Xte, Xtr), axis=1)[:, :7] + 1e-9)
    _, counts = np.unique(ytr, return_counts=True)
    return pred, np.mean(pred == yte), confusion, precision, slow, scores, counts, weights


def network(n: int = 300) -> Any:
    """A network of two layers on spirals: minibatches and Adam, by hand."""
    rng = _Draws(9)
    X, y = np.zeros((n * 3, 2)), np.zeros(n * 3, dtype="uint8")
    for j in range(3):
        ix = range(n * j, n * (j + 1))
        r = np.linspace(0.0, 1, n)
        t = np.linspace(j * 4, (j + 1) * 4, n) + rng.normal(size=n) * 0.2
        X[ix] = np.c_[r * np.sin(t), r * np.cos(t)]
        y[ix] = j
    params = {"W1": 0.5 * rng.normal(size=(2, 64)), "b1": np.zeros((1, 64))}
    params |= {"W2": 0.1 * rng.normal(size=(64, 3)), "b2": np.zeros((1, 3))}
    m = {k: np.zeros_like(v) for k, v in params.items()}
    v = {k: np.zeros_like(w) for k, w in params.items()}
    losses, it = [], 0
    for _ in range(5):
        order = rng.permutation(len(X))
        for start in range(0, len(X), 150):
            batch = order[start : start + 150]
            xb, yb = X[batch], y[batch]
            hidden = np.maximum(0, np.dot(xb, params["W1"]) + params["b1"])
            scores = np.dot(hidden, params["W2"]) + params["b2"]
            scores -= scores.max(axis=1, keepdims=True)
            exp_scores = np.exp(scores)
            probs = exp_scores / np.sum(exp_scores, axis=1, keepdims=True)
            losses.append(float(-np.log(probs[range(len(yb)), yb]).mean()))
            d = probs.copy()
            d[range(len(yb)), yb] -= 1
            d /= len(yb)
            grads = {"W2": hidden.T.dot(d), "b2": np.sum(d, axis=0, keepdims=True)}
            back = d.dot(params["W2"].T)
            back[hidden <= 0] = 0
            grads |= {"W1": xb.T.dot(back), "b1": np.sum(back, axis=0, keepdims=True)}
            it += 1
            for k in params:
                g = grads[k] + (1e-3 * params[k] if k[0] == "W" else 0)
                m[k] = 0.9 * m[k] + 0.1 * g
                v[k] = 0.999 * v[k] + 0.001 * g**2
                rate = 0.05 / (1 - 0.9**it)
                params[k] -= rate * m[k] / (np.sqrt(v[k] / (1 - 0.999**it)) + 1e-8)
    hidden = np.maximum(0, X @ params["W1"] + params["b1"])
    return losses, np.argmax(hidden @ params["W2"] + params["b2"], axis=1), params["W1"]


def graphs(n: int = 500) -> Any:
    """PageRank, hubs and authorities, shortest paths and components of a random graph."""
    edges = _Draws(10).integers(0, n, size=(n * 8, 2))
    edges = np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0)
    A = np.zeros((n, n))
    A[edges[:, 0], edges[:, 1]] = 1
    out = A.sum(axis=1, keepdims=True)
    P = np.divide(A, out, out=np.full_like(A, 1 / n), where=out > 0)
    rank = np.ones(n) / n
    for _ in range(200):
        new = 0.85 * rank @ P + 0.15 / n
        delta = np.abs(new - rank).sum()
        rank = new
        if delta < 1e-10:
            break
    hubs = np.ones(n)
    for _ in range(30):
        auth = A.T @ hubs
        auth /= np.linalg.norm(auth)
        hubs = A @ auth
        hubs /= np.linalg.norm(hubs)
    dist = np.where(A[:100, :100] > 0, 1.0, np.inf)
    np.fill_diagonal(dist, 0)
    for k in range(100):
        dist = np.minimum(dist, dist[:, k, None] + dist[None, k, :])
    degree = np.bincount(edges[:, 1], minlength=n)
    L = np.diag(degree[:100]) - A[:100, :100]
    fiedler = np.linalg.eigvalsh((L + L.T) / 2)[1]
    triangles = np.trace(np.linalg.matrix_power(A[:100, :100], 3))
    values, where = np.unique(degree, return_inverse=True)
    return (
        rank,
        hubs,
        auth,
        dist,
        np.isfinite(dist).mean(),
        fiedler,
        triangles,
        values,
        where,
    )


def waves(n: int = 200) -> Any:
    """The wave equation in a box with a moving source, a damped border and an energy."""
    u, before = np.zeros((n, n)), np.zeros((n, n))
    damping = np.ones((n, n))
    damping[:4] = damping[-4:] = damping[:, :4] = damping[:, -4:] = 0.95
    energies = []
    for k in range(120):
        lap = -4 * u
        lap[1:] += u[:-1]
        lap[:-1] += u[1:]
        lap[:, 1:] += u[:, :-1]
        lap[:, :-1] += u[:, 1:]
        after = (2 * u - before + 0.25 * lap) * damping
        after[n // 2, n // 4 + k % (n // 4)] += np.sin(0.3 * k)
        before, u = u, after
        if k % 20 == 0:
            energies.append(float(np.sum((u - before) ** 2)))
    return u, energies, np.abs(u).max()


def options(n: int = 20_000) -> Any:
    """Black-Scholes by a rational approximation, implied volatility, a tree and paths."""
    rng = _Draws(11)
    S, K = rng.uniform(80, 120, n), rng.uniform(80, 120, n)
    T, sigma, r = rng.uniform(0.1, 2, n), rng.uniform(0.1, 0.5, n), 0.02

    def normal(x: Any) -> Any:
        t = 1 / (1 + 0.2316419 * np.abs(x))
        poly = t * (0.31938153 + t * (-0.356563782 + t * (1.781477937 - 1.821255978 * t)))
        tail = np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi) * poly
        return np.where(x >= 0, 1 - tail, tail)

    def call(vol: Any) -> Any:
        d1 = (np.log(S / K) + (r + vol**2 / 2) * T) / (vol * np.sqrt(T))
        return S * normal(d1) - K * np.exp(-r * T) * normal(d1 - vol * np.sqrt(T))

    price = call(sigma)
    low, high = np.full(n, 0.01), np.full(n, 1.0)
    for _ in range(20):
        middle = (low + high) / 2
        above = call(middle) > price
        high, low = np.where(above, middle, high), np.where(above, low, middle)
    steps = 100
    up = np.exp(0.2 * np.sqrt(1 / steps))
    p = (np.exp(r / steps) - 1 / up) / (up - 1 / up)
    values = np.maximum(100 - 100 * up ** (2.0 * np.arange(steps + 1) - steps), 0)
    for k in range(steps, 0, -1):
        values = np.exp(-r / steps) * (p * values[1:] + (1 - p) * values[:-1])
        values = np.maximum(values, 100 - 100 * up ** (2.0 * np.arange(k) - k + 1))
    shocks = rng.normal(size=(n // 10, 52))
    paths = 100 * np.exp(np.cumsum((r - 0.02) / 52 + 0.2 * np.sqrt(1 / 52) * shocks, axis=1))
    asian = np.maximum(paths.mean(axis=1) - 100, 0)
    return price, (low + high) / 2, values[0], asian.mean(), np.percentile(paths[:, -1], [5, 95])


def clusters(n: int = 2000) -> Any:
    """Mixtures of Gaussians by expectation and maximisation, k-means first."""
    rng = _Draws(12)
    X = rng.normal(size=(n, 2)) + rng.integers(0, 4, (n, 1)) * np.array([3.0, -2.0])
    means = X[:4].copy()
    for _ in range(10):
        labels = ((X[:, None] - means[None]) ** 2).sum(axis=2).argmin(axis=1)
        for k in range(4):
            members = X[labels == k]
            if len(members) > 0:
                means[k] = members.mean(axis=0)
    covs, weights = np.stack([np.eye(2)] * 4), np.full(4, 0.25)
    likelihoods = []
    for _ in range(15):
        logs = np.empty((n, 4))
        for k in range(4):
            d = X - means[k]
            inner = np.einsum("ij,jk,ik->i", d, np.linalg.inv(covs[k]), d)
            logs[:, k] = np.log(weights[k]) - 0.5 * (inner + np.log(np.linalg.det(covs[k])))
        top = logs.max(axis=1, keepdims=True)
        total = top + np.log(np.exp(logs - top).sum(axis=1, keepdims=True))
        share = np.exp(logs - total)
        size = share.sum(axis=0)
        means, weights = share.T @ X / size[:, None], size / n
        for k in range(4):
            d = X - means[k]
            covs[k] = (share[:, k, None] * d).T @ d / size[k] + 1e-6 * np.eye(2)
        likelihoods.append(float(total.sum()))
    return means, covs, weights, likelihoods, np.bincount(labels, minlength=4)


def viterbi(n: int = 300) -> Any:
    """The most probable path of a hidden Markov model, and its forward probabilities."""
    rng, states = _Draws(13), 6
    A = rng.random((states, states)) + 3 * np.eye(states)
    A /= A.sum(axis=1, keepdims=True)
    B = rng.random((states, 10))
    B /= B.sum(axis=1, keepdims=True)
    seen = [int(s) for s in rng.integers(0, 10, n)]
    logA, logB = np.log(A), np.log(B)
    score, back = np.log(np.full(states, 1 / states)) + logB[:, seen[0]], np.zeros((n, states), int)
    alpha, scale = np.zeros((n, states)), np.zeros(n)
    alpha[0] = B[:, seen[0]] / states
    for t in range(1, n):
        through = score[:, None] + logA
        back[t] = np.argmax(through, axis=0)
        score = through.max(axis=0) + logB[:, seen[t]]
        alpha[t] = (alpha[t - 1] @ A) * B[:, seen[t]]
        scale[t] = alpha[t].sum()
        alpha[t] /= scale[t]
    path = [int(score.argmax())]
    for t in range(n - 1, 0, -1):
        path.append(int(back[t, path[-1]]))
    return path[::-1], score.max(), alpha, np.log(scale[1:]).sum()


def orbits(n: int = 400) -> Any:
    """Steps of a Runge-Kutta method for three bodies and for a chemical reaction."""

    def three_bodies(s: Any) -> Any:
        position, velocity = s[:3], s[3:]
        d = position[None] - position[:, None]
        r = np.sqrt((d**2).sum(axis=-1)) + np.eye(3)
        return np.concatenate([velocity, (d / r[..., None] ** 3).sum(axis=1)])

    def reaction(s: Any) -> Any:
        a, b = s
        return np.array([1 - 4 * a + a * a * b, 3 * a - a * a * b])

    def integrate(f: Any, s: Any, h: float) -> Any:
        trail = [s]
        for _ in range(n):
            a = f(s)
            b = f(s + h / 2 * a)
            c = f(s + h / 2 * b)
            s = s + h / 6 * (a + 2 * b + 2 * c + f(s + h * c))
            trail.append(s)
        return np.array(trail)

    start = [[1.0, 0], [-1, 0], [0, 0], [0.35, 0.53], [0.35, 0.53], [-0.7, -1.06]]
    return integrate(three_bodies, np.array(start), 0.005), integrate(reaction, np.ones(2), 0.02)


SCRIPTS = {
    filters: 1920,
    kalman: 2400,
    metropolis: 3200,
    life: 1024,
    fractals: 1200,
    spectra: 64_000,
    components: 32_000,
    neighbours: 4800,
    network: 4800,
    graphs: 2000,
    waves: 800,
    options: 320_000,
    clusters: 32_000,
    viterbi: 4800,
    orbits: 6400,
}
"""All programs, and the size with which each has sixteen times its elements or steps."""
