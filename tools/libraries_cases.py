"""Calls of other libraries that `tools.libraries` makes with NumPy's and with Smelt's arrays.

A case is a function of a namespace. Imports are inside of the functions that make cases, because
none of the libraries is needed by the package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["CASES", "REASONS"]

Case = Callable[[Any], Any]

_RANDOM = np.random.default_rng(0)
_X = _RANDOM.standard_normal((40, 5))
_Y = (_X @ np.arange(1.0, 6.0) > 0).astype(np.int64)
_P = np.abs(_RANDOM.standard_normal(30)) + 0.5
_Q = np.abs(_RANDOM.standard_normal(30)) + 0.5
_IMAGE = _RANDOM.standard_normal((16, 20))
_SIGNAL = np.cos(np.linspace(0, 20, 64))


def _of(function: Callable[..., Any], *arrays: Any, **named: Any) -> Case:
    """Return a case: a function of arrays, which are made in the namespace."""
    return lambda xp: function(*(xp.asarray(a) for a in arrays), **named)


def _special() -> Mapping[str, Case]:
    from scipy import special

    return {
        name: _of(getattr(special, name), *arguments)
        for name, arguments in {
            "erf": (_P,),
            "erfc": (_P,),
            "expit": (_P,),
            "logit": (_P / 9,),
            "gammaln": (_P,),
            "i0": (_P,),
            "i1": (_P,),
            "log_ndtr": (_P,),
            "ndtr": (_P,),
            "ndtri": (_P / 9,),
            "entr": (_P,),
            "rel_entr": (_P, _Q),
            "xlogy": (_P, _Q),
            "betainc": (_P, _Q, _P / 9),
            "logsumexp": (_X,),
            "softmax": (_X,),
            "log_softmax": (_X,),
            "chdtr": (_P, _Q),
            "gammainc": (_P, _Q),
        }.items()
    }


def _stats() -> Mapping[str, Case]:
    from scipy import stats

    return {
        "mean": _of(stats.gmean, _P),
        "hmean": _of(stats.hmean, _P),
        "pmean": _of(stats.pmean, _P, p=2),
        "moment": _of(stats.moment, _X, order=3),
        "skew": _of(stats.skew, _X),
        "kurtosis": _of(stats.kurtosis, _X),
        "zscore": _of(stats.zscore, _X),
        "variation": _of(stats.variation, _P),
        "sem": _of(stats.sem, _X),
        "entropy": _of(stats.entropy, _P),
        "ttest_1samp": lambda xp: stats.ttest_1samp(xp.asarray(_P), 1.0).pvalue,
        "ttest_ind": lambda xp: stats.ttest_ind(xp.asarray(_P), xp.asarray(_Q)).pvalue,
        "pearsonr": lambda xp: stats.pearsonr(xp.asarray(_P), xp.asarray(_Q)).statistic,
        "chisquare": lambda xp: stats.chisquare(xp.asarray(_P * 0 + 3.0)).statistic,
        "jarque_bera": lambda xp: stats.jarque_bera(xp.asarray(_P)).statistic,
        "normaltest": lambda xp: stats.normaltest(xp.asarray(_P)).statistic,
        "differential_entropy": _of(stats.differential_entropy, _P),
        "trim_mean": _of(stats.trim_mean, _P, proportiontocut=0.1),
    }


def _transforms() -> Mapping[str, Case]:
    from scipy import fft

    return {
        "fft": _of(fft.fft, _SIGNAL),
        "rfft": _of(fft.rfft, _SIGNAL),
        "irfft": lambda xp: fft.irfft(fft.rfft(xp.asarray(_SIGNAL))),
        "fft2": _of(fft.fft2, _IMAGE),
        "dct": _of(fft.dct, _SIGNAL),
        "fftfreq": lambda xp: fft.fftfreq(9, xp=xp),
        "fftshift": _of(fft.fftshift, _SIGNAL),
    }


def _images() -> Mapping[str, Case]:
    from scipy import ndimage

    return {
        "gaussian_filter": _of(ndimage.gaussian_filter, _IMAGE, sigma=1.0),
        "median_filter": _of(ndimage.median_filter, _IMAGE, size=3),
        "zoom": _of(ndimage.zoom, _IMAGE, zoom=2),
        "label": lambda xp: ndimage.label(xp.asarray(_IMAGE > 0.5)),
    }


def _signals() -> Mapping[str, Case]:
    from scipy import signal

    return {
        "convolve": _of(signal.convolve, _SIGNAL, _SIGNAL[:7]),
        "fftconvolve": _of(signal.fftconvolve, _SIGNAL, _SIGNAL[:7]),
        "detrend": _of(signal.detrend, _SIGNAL),
        "hilbert": lambda xp: abs(signal.hilbert(xp.asarray(_SIGNAL))),
        "savgol_filter": _of(signal.savgol_filter, _SIGNAL, window_length=7, polyorder=2),
        "decimate": _of(signal.decimate, _SIGNAL, q=2),
    }


def _numerics() -> Mapping[str, Case]:
    from scipy import cluster, differentiate, integrate
    from scipy.optimize import elementwise

    return {
        "integrate.trapezoid": _of(integrate.trapezoid, _SIGNAL),
        "integrate.simpson": _of(integrate.simpson, _SIGNAL),
        "integrate.cumulative_trapezoid": _of(integrate.cumulative_trapezoid, _SIGNAL),
        "optimize.elementwise.find_root": lambda xp: (
            elementwise.find_root(
                lambda x, c: x**2 - c,
                (xp.asarray(_P * 0), xp.asarray(_P + 9)),
                args=(xp.asarray(_P),),
            ).x
        ),
        "differentiate.derivative": lambda xp: (
            differentiate.derivative(lambda x: x**3, xp.asarray(_P)).df
        ),
        "cluster.vq.whiten": _of(cluster.vq.whiten, _X),
        "cluster.vq.vq": _of(cluster.vq.vq, _X, _X[:4]),
        "cluster.hierarchy.linkage": _of(cluster.hierarchy.linkage, _X),
    }


def _scipy() -> Mapping[str, Case]:
    groups = {
        "special": _special(),
        "stats": _stats(),
        "fft": _transforms(),
        "ndimage": _images(),
        "signal": _signals(),
    }
    named = {f"{group}.{name}": f for group, table in groups.items() for name, f in table.items()}
    return named | _numerics()


_WRONG = np.where(np.arange(len(_Y)) % 5, _Y, 1 - _Y)
_REAL, _GUESS = _X[:, 0], _X[:, 0] + 0.1 * _X[:, 1]


def _dispatched(call: Callable[[Any], Any]) -> Case:
    """Return a case that runs where scikit-learn takes other libraries' arrays."""

    def case(xp: Any) -> Any:
        import sklearn

        with sklearn.config_context(array_api_dispatch=True):
            return call(xp)

    return case


def _sklearn() -> Mapping[str, Case]:
    return {**_estimators(), **_preprocessed(), **_metrics(), **_pairwise()}


def _fitted(make: Callable[[], Any], method: str, supervised: bool = False) -> Case:
    def call(xp: Any) -> Any:
        x, y = xp.asarray(_X), xp.asarray(_Y)
        estimator = make().fit(x, y) if supervised else make().fit(x)
        return getattr(estimator, method)(x)

    return _dispatched(call)


def _estimators() -> Mapping[str, Case]:
    from sklearn import (
        discriminant_analysis,
        linear_model,
        mixture,
        naive_bayes,
        pipeline,
        preprocessing,
    )

    def scaled() -> Any:
        ridge = linear_model.Ridge(solver="svd")
        return pipeline.make_pipeline(preprocessing.StandardScaler(), ridge)

    supervised = {
        "LinearDiscriminantAnalysis": discriminant_analysis.LinearDiscriminantAnalysis,
        "Ridge": lambda: linear_model.Ridge(solver="svd"),
        "RidgeCV": linear_model.RidgeCV,
        "RidgeClassifier": lambda: linear_model.RidgeClassifier(solver="svd"),
        "LogisticRegression": linear_model.LogisticRegression,
        "GaussianNB": naive_bayes.GaussianNB,
        "make_pipeline": scaled,
    }

    def mixed() -> Any:
        return mixture.GaussianMixture(2, init_params="random", random_state=0)

    cases = {name: _fitted(make, "predict", True) for name, make in supervised.items()}
    return cases | {"GaussianMixture": _fitted(mixed, "predict")}


def _preprocessed() -> Mapping[str, Case]:
    from sklearn import decomposition, linear_model, model_selection, preprocessing

    scalers = (
        preprocessing.StandardScaler,
        preprocessing.MinMaxScaler,
        preprocessing.MaxAbsScaler,
        preprocessing.Normalizer,
        preprocessing.Binarizer,
        preprocessing.PolynomialFeatures,
    )

    def centred(xp: Any) -> Any:
        gram = xp.asarray(_X @ _X.T)
        return preprocessing.KernelCenterer().fit(gram).transform(gram)

    def encoded(xp: Any) -> Any:
        labels = xp.asarray(_Y * 7 + 3)
        return preprocessing.LabelEncoder().fit(labels).transform(labels)

    def restored(xp: Any) -> Any:
        x = xp.asarray(_X)
        pca = decomposition.PCA(2, svd_solver="full").fit(x)
        return pca.inverse_transform(pca.transform(x))

    def split(xp: Any) -> Any:
        return model_selection.train_test_split(xp.asarray(_X), random_state=0)

    def crossed(xp: Any) -> Any:
        ridge = linear_model.Ridge(solver="svd")
        x, y = xp.asarray(_X), xp.asarray(_X[:, 0] * 2)
        return model_selection.cross_val_predict(ridge, x, y, cv=3)

    named = {
        "KernelCenterer": centred,
        "LabelEncoder": encoded,
        "PCA": restored,
        "train_test_split": split,
        "cross_val_predict": crossed,
    }
    cases = {name: _dispatched(call) for name, call in named.items()}
    return {s.__name__: _fitted(s, "transform") for s in scalers} | cases


_OF_LABELS = """
    accuracy_score balanced_accuracy_score confusion_matrix f1_score hamming_loss jaccard_score
    precision_score recall_score zero_one_loss
"""
_OF_PROBABILITIES = "brier_score_loss log_loss"
_OF_NUMBERS = """
    d2_absolute_error_score explained_variance_score max_error mean_absolute_error
    mean_squared_error mean_pinball_loss median_absolute_error r2_score
"""
_OF_POSITIVE_NUMBERS = """
    mean_squared_log_error mean_gamma_deviance mean_poisson_deviance mean_tweedie_deviance
"""
_OF_SCORES = "roc_auc_score roc_curve"
_PAIRWISE = """
    cosine_similarity cosine_distances euclidean_distances linear_kernel polynomial_kernel
    rbf_kernel sigmoid_kernel laplacian_kernel manhattan_distances
"""


def _metrics() -> Mapping[str, Case]:
    from sklearn import metrics

    operands = {
        _OF_LABELS: (_Y, _WRONG),
        _OF_PROBABILITIES: (_Y, 0.3 + 0.4 * _Y),
        _OF_NUMBERS: (_REAL, _GUESS),
        _OF_POSITIVE_NUMBERS: (_P, _Q),
        _OF_SCORES: (_Y, _REAL),
    }
    return {
        name: _dispatched(_of(getattr(metrics, name), *arrays))
        for names, arrays in operands.items()
        for name in names.split()
    }


def _pairwise() -> Mapping[str, Case]:
    from sklearn.metrics import pairwise

    return {
        name: _dispatched(_of(getattr(pairwise, name), _X, _X[:7])) for name in _PAIRWISE.split()
    }


def _einops() -> Mapping[str, Case]:
    import einops

    return {
        "rearrange": lambda xp: einops.rearrange(xp.asarray(_X), "(a b) c -> a (b c)", a=4),
        "reduce": lambda xp: einops.reduce(xp.asarray(_X), "a b -> b", "mean"),
        "repeat": lambda xp: einops.repeat(xp.asarray(_X), "a b -> a b 3"),
        "pack": lambda xp: einops.pack([xp.asarray(_X), xp.asarray(_X)], "a *")[0],
        "einsum": lambda xp: einops.einsum(xp.asarray(_X), xp.asarray(_X), "a c, b c -> a b"),
    }


def _xarray() -> Mapping[str, Case]:
    import xarray as xr

    def data(xp: Any) -> Any:
        return xr.DataArray(xp.asarray(_X), dims=("time", "place"))

    return {
        "arithmetic": lambda xp: (data(xp) * 2 + 1).data,
        "mean": lambda xp: data(xp).mean("time").data,
        "sum": lambda xp: data(xp).sum().data,
        "std": lambda xp: data(xp).std("place").data,
        "where": lambda xp: data(xp).where(data(xp) > 0, 0.0).data,
        "isel": lambda xp: data(xp).isel(time=slice(3, 9)).data,
        "transpose": lambda xp: data(xp).transpose("place", "time").data,
        "broadcast": lambda xp: (data(xp) - data(xp).mean("time")).data,
        "concat": lambda xp: xr.concat([data(xp), data(xp)], "time").data,
        "Dataset": lambda xp: xr.Dataset({"a": data(xp)}).mean("time")["a"].data,
    }


def _pandas() -> Mapping[str, Case]:
    import pandas as pd

    return {
        "DataFrame": lambda xp: pd.DataFrame(xp.asarray(_X)).describe().to_numpy(),
        "Series": lambda xp: pd.Series(xp.asarray(_P)).rolling(3).mean().to_numpy(),
        "column": lambda xp: pd.DataFrame({"a": xp.asarray(_P)})["a"].sum(),
        "assign": lambda xp: pd.DataFrame({"a": _P}).assign(b=xp.asarray(_Q)).to_numpy(),
        "of columns": lambda xp: xp.sum(xp.asarray(pd.DataFrame(_X)[2]) ** 2),
        "cut": lambda xp: pd.cut(pd.Series(xp.asarray(_P)), 3).cat.codes.to_numpy(),
    }


def _matplotlib() -> Mapping[str, Case]:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    def drawn(draw: Callable[[Any, Any], Any]) -> Case:
        def case(xp: Any) -> Any:
            figure, axes = plt.subplots()
            draw(axes, xp)
            figure.canvas.draw()
            pixels = np.asarray(figure.canvas.buffer_rgba()).astype(np.int64)
            plt.close(figure)
            return pixels

        return case

    return {
        "plot": drawn(lambda axes, xp: axes.plot(xp.asarray(_SIGNAL))),
        "scatter": drawn(lambda axes, xp: axes.scatter(xp.asarray(_P), xp.asarray(_Q))),
        "imshow": drawn(lambda axes, xp: axes.imshow(xp.asarray(_IMAGE))),
        "hist": drawn(lambda axes, xp: axes.hist(xp.asarray(_P))),
        "bar": drawn(lambda axes, xp: axes.bar(xp.asarray(np.arange(30)), xp.asarray(_P))),
        "fill_between": drawn(
            lambda axes, xp: axes.fill_between(xp.asarray(np.arange(30)), xp.asarray(_P))
        ),
        "contour": drawn(lambda axes, xp: axes.contour(xp.asarray(_IMAGE))),
        "errorbar": drawn(
            lambda axes, xp: axes.errorbar(xp.asarray(_P), xp.asarray(_Q), xp.asarray(_Q) / 9)
        ),
    }


def _dask() -> Mapping[str, Case]:
    import dask.array as da

    import smelt as sm

    jitted = sm.jit(lambda x: sm.exp(-x * x) + sm.sum(x, axis=1, keepdims=True))

    def chunk(xp: Any) -> Callable[[Any], Any]:
        def of_numpy(x: Any) -> Any:
            return np.exp(-x * x) + np.sum(x, axis=1, keepdims=True)

        return of_numpy if xp is np else jitted

    def blocks(xp: Any) -> Any:
        return da.from_array(_X, chunks=(10, 5)).map_blocks(chunk(xp), dtype=_X.dtype)

    return {
        "map_blocks(jitted)": lambda xp: np.asarray(blocks(xp).compute(scheduler="sync")),
        "map_blocks, threads": lambda xp: np.asarray(blocks(xp).compute(scheduler="threads")),
        "map_blocks, then sum": lambda xp: np.asarray(blocks(xp).sum(axis=0).compute()),
        "from_array": lambda xp: da.from_array(xp.asarray(_X), chunks=(10, 5)).sum().compute(),
        "map_overlap": lambda xp: np.asarray(
            da.from_array(_X, chunks=(10, 5))
            .map_overlap(chunk(xp), depth=(1, 0), boundary="reflect", dtype=_X.dtype)
            .compute()
        ),
    }


class _Cases(Mapping[str, Mapping[str, Case]]):
    """Library -> its cases, made on first use."""

    _makers: Mapping[str, Callable[[], Mapping[str, Case]]] = {
        "scipy": _scipy,
        "sklearn": _sklearn,
        "einops": _einops,
        "xarray": _xarray,
        "pandas": _pandas,
        "matplotlib": _matplotlib,
        "dask": _dask,
    }

    def __getitem__(self, library: str) -> Mapping[str, Case]:
        return self._makers[library]()

    def __iter__(self) -> Any:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


CASES: Mapping[str, Mapping[str, Case]] = _Cases()

REASONS: Mapping[str, str] = {}
"""Call -> why it does not work."""
