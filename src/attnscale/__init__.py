"""attnscale: attention backends in whole transformer forwards, measured, explained, extrapolated."""

__version__ = "0.1.0"
