"""Hydra finds these by the name of the namespace package: a sweeper and a launcher.

Hydra imports every module here at each start, so none imports more than Hydra itself.
"""
