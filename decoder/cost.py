"""What a pass costs on this machine: measured at start, refined by every pass that is served.

Nearly all of a pass is products of matrices with one line a token, so rows and width count by their product; that
kernels are chosen by it makes the cost no smooth and no monotone function (16 tokens may cost less than 12). What
attention adds grows with the cells that rows read. So seconds = table[rows * width] + rows * cells * (a + b * width).
"""

import math
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder.batch import Batch, Row
from refdraft.decoder.target import Target

_WIDTHS = (1, 16, 4, 2, 8, 3, 32, 65, 12, 6)  # columns timed at start; what matters most first, if time runs out
_FEWEST = 4  # of them, however long they take
_ROUNDS = 3
_SHORT, _LONG = 64, 1024  # tokens in the cache of the passes timed

_OUTLIER = math.log(1.5)  # a pass says no more than this about an estimate
_DRIFT_RATE = 0.2
_RATE = 0.05  # slower than the drift, or widths that are not run would seem to stay fast on a machine that slows down
_START_RUNS = 8  # passes that a measurement at start counts for

_LEAST_PRODUCTS = 0.25  # of a measured pass

_HOPE = 0.25  # by so much less than measured a pass may cost that was not run for long
_HOPE_PASSES = 1000

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class _Shape(NamedTuple):
    """A pass to time."""

    rows: int
    width: int  # columns
    length: int  # tokens in the cache


class PassCost:
    """Expected seconds of a pass by its shape.

    Estimates are moved by every pass, but a stall moves none far. A common factor, the drift, takes most of what a
    whole machine that gets slower or faster does to them. An estimate that is not put to the test for long may be too
    high, and `hope` says by how much to doubt it: so any shape that is nearly worth it is tried again.

    Args:
        seconds: of a pass by its tokens, without what attention adds. Without any, every pass costs one and nothing
            is refined: width is free.
        row_cell, column_cell: seconds for each cell that a row reads, once a row and once more a column.
    """

    def __init__(
        self, seconds: Mapping[int, float] | None = None, *, row_cell: float = 0.0, column_cell: float = 0.0
    ) -> None:
        points = sorted((seconds or {}).items())
        self._tokens = np.array([tokens for tokens, _ in points], np.int64)
        self._seconds = np.array([value for _, value in points], np.float64)
        self._runs = np.full(len(points), _START_RUNS)
        self._row_cell, self._column_cell = row_cell, column_cell
        self._drift = 1.0
        self._passes = 0
        self._last_run = np.zeros(64, np.int64)  # by the logarithm of a pass's tokens: the pass that was last run

    def __call__(self, rows: int, widths: Ints, cells: Ints) -> Floats:
        """Seconds that passes of `rows` rows are expected to cost, by width.

        Args:
            rows: rows of the passes.
            widths: int64 [n], columns.
            cells: int64 [n], cells of the cache that each row may read.

        Returns:
            float64 [n]
        """
        if not len(self._tokens):
            return np.ones(len(widths))
        attention = rows * cells * (self._row_cell + widths * self._column_cell)
        return self._drift * (self._products(rows * widths) + attention)

    def hope(self, rows: int, widths: Ints) -> Floats:
        """What share of the estimate a pass may cost at best: the less, the longer none of about its tokens was run.

        Returns:
            float64 [n], in [1 - _HOPE, 1]
        """
        age = self._passes - self._last_run[_magnitude(rows * widths)]
        return 1.0 - _HOPE * np.minimum(1.0, age / _HOPE_PASSES)

    def observe(self, rows: int, width: int, cells: int, seconds: float) -> None:
        """Learn what a pass took."""
        if not len(self._tokens):
            return
        point = self._point(rows * width)
        expected = float(self(rows, np.array([width]), np.array([cells]))[0])
        error = max(-_OUTLIER, min(math.log(seconds / expected), _OUTLIER))
        self._drift *= math.exp(_DRIFT_RATE * error)
        self._seconds[point] *= math.exp(max(_RATE, 1 / (2 + self._runs[point])) * error)
        self._runs[point] += 1
        self._passes += 1
        self._last_run[_magnitude(np.array(rows * width))] = self._passes

    def _products(self, tokens: Ints) -> Floats:
        """The table, linear between points and proportional beyond the last."""
        beyond: Floats = np.maximum(1.0, tokens / self._tokens[-1])
        return beyond * np.interp(tokens, self._tokens, self._seconds)

    def _point(self, tokens: int) -> int:
        """The place of `tokens` in the table, where it is entered as estimated if it is not there yet."""
        place = int(np.searchsorted(self._tokens, tokens))
        if place == len(self._tokens) or self._tokens[place] != tokens:
            self._seconds = np.insert(self._seconds, place, self._products(np.array([tokens])))
            self._tokens = np.insert(self._tokens, place, tokens)
            self._runs = np.insert(self._runs, place, 0)
        return place


def _magnitude(tokens: Ints) -> Ints:
    return np.log2(tokens).astype(np.int64)


def measure_passes(target: Target, widest: int, *, budget_s: float = 5.0) -> PassCost:
    """Time decode passes of up to `widest` columns.

    Args:
        target: its cache must be free; what is left in it is masked.
        widest: columns.
        budget_s: seconds to spend, more or less; of a slow target fewer shapes are timed, and each less often.
    """
    start = time.perf_counter()
    shapes = list(_shapes(target, widest))
    time_pass(target, *shapes[0])  # makes the cache
    times: dict[_Shape, float] = {}
    for shape in shapes * _ROUNDS:
        if len(times) >= _FEWEST and time.perf_counter() - start > budget_s:
            break
        times[shape] = min(time_pass(target, *shape), times.get(shape, math.inf))
    return _fit(times)


def measure_strict_pass(target: Target, width: int) -> PassCost:
    """Time the one shape in which strict numerics runs all decode passes."""
    length = target.context_limit - 1
    return PassCost({target.slots * width: min(time_pass(target, target.slots, width, length) for _ in range(2))})


def _shapes(target: Target, widest: int) -> Iterator[_Shape]:
    short, long = min(_SHORT, target.context_limit - 1), min(_LONG, target.context_limit - 1)
    widths = [width for width in _WIDTHS if width <= widest]
    for width in widths[:2]:
        yield from dict.fromkeys([_Shape(1, width, short), _Shape(1, width, long)])
    yield from (_Shape(1, width, short) for width in widths[2:])
    yield from (_Shape(target.slots, width, short) for width in widths[:3] if target.slots * width > max(widths))


def time_pass(target: Target, rows: int, width: int, length: int) -> float:
    """Seconds of a decode pass of `rows` rows, `width` columns and `length` tokens in the cache."""
    batch = Batch.decode(
        0,
        [Row(length, 0)] * rows,
        width=width,
        cells=length + width,
        last_position=target.context_limit - 1,
    )
    start = time.perf_counter()
    target.run(batch).cpu()
    return time.perf_counter() - start


def _fit(times: Mapping[_Shape, float]) -> PassCost:
    """The cost model that gives the passes timed these times."""
    slopes = []  # width, seconds for each cell read
    for shape, long in times.items():
        short = shape._replace(length=min(other.length for other in times))
        if shape != short:
            slopes.append((shape.width, max(0.0, long - times[short]) / (shape.length - short.length)))
    row_cell, column_cell = 0.0, 0.0
    if slopes:
        (width, slope), (wider, steeper) = slopes[0], slopes[-1]
        column_cell = max(0.0, steeper - slope) / max(1, wider - width)
        row_cell = max(0.0, slope - width * column_cell)
    products = {}
    for shape, seconds in times.items():
        if shape.length == min(other.length for other in times):
            attention = shape.rows * (shape.length + shape.width) * (row_cell + column_cell * shape.width)
            # A stall in a long pass makes attention look dear; never so dear that nothing is left for the products.
            products[shape.rows * shape.width] = max(seconds - attention, _LEAST_PRODUCTS * seconds)
    return PassCost(products, row_cell=row_cell, column_cell=column_cell)
