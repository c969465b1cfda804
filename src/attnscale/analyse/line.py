"""A straight line through points of known variances, by weighted least squares, and what it can't say.

Source: Bevington and Robinson, Data Reduction and Error Analysis, 3rd ed., chapters 6 and 11; Birge's
ratio for points that scatter more than their variances explain.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray
from scipy.stats import chi2, norm, t

Array = NDArray[numpy.float64]
_BENT = 3.0
"""Standard errors of the quadratic term that count as a bend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """x, y and the standard error of each y."""

    x: Array
    y: Array
    sigma: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """intercept + slope * x."""

    intercept: float
    slope: float
    covariance: Array
    """Of the two: [2, 2]."""
    scatter: float
    """1, or Birge's ratio, the root of chi squared over its degrees of freedom, where it is larger than
    chance makes it in 39 of 40 lines."""
    freedom: int

    def at(self, x: float) -> float:
        return self.intercept + self.slope * x

    def sigma_at(self, x: float) -> float:
        """Standard error of the line there."""
        row = numpy.array([1.0, x])
        return math.sqrt(float(row @ self.covariance @ row))

    @property
    def quantile(self) -> float:
        """Of 97.5%: the normal's where variances are known, Student's t where they had to be scaled."""
        return float(norm.ppf(0.975) if self.scatter == 1.0 else t.ppf(0.975, self.freedom))


def fitted(points: Points) -> Line:
    """At least two different x are needed."""
    solution, covariance = _solved(points, powers=2)
    residuals = (points.y - solution[0] - solution[1] * points.x) / points.sigma
    freedom = len(points.x) - 2
    chi_squared = float(residuals @ residuals)
    by_chance = freedom == 0 or chi_squared <= chi2.ppf(0.975, freedom)
    scatter = 1.0 if by_chance else math.sqrt(chi_squared / freedom)
    return Line(
        intercept=float(solution[0]),
        slope=float(solution[1]),
        covariance=covariance * scatter**2,
        scatter=scatter,
        freedom=freedom,
    )


def bend(points: Points) -> float:
    """The quadratic term, if it is one beyond chance, else 0; also 0 with less than four points."""
    if len(points.x) < 4:
        return 0.0
    solution, covariance = _solved(points, powers=3)
    beyond = abs(solution[2]) > _BENT * math.sqrt(covariance[2, 2])
    return float(solution[2]) if beyond else 0.0


def _solved(points: Points, *, powers: int) -> tuple[Any, Any]:
    """Coefficients from the constant up, and their covariance."""
    design = numpy.column_stack([points.x**power for power in range(powers)])
    weighted = design / points.sigma[:, None] ** 2
    covariance = numpy.linalg.inv(design.T @ weighted)
    return covariance @ (weighted.T @ points.y), covariance
