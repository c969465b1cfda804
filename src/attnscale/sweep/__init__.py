"""A sweep of cases: its folder, its workers, its GPUs, how it goes on and how it closes.

Knows neither Hydra nor torch, and never touches CUDA: only the workers do.
"""
