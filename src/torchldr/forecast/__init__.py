"""Forecasting: a linear forecaster is a matrix of low displacement rank, in closed form."""

from .fir import fir
from .forecaster import Interval, LinearForecaster
from .module import Forecast

__all__ = ["Forecast", "Interval", "LinearForecaster", "fir"]
