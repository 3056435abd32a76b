"""Masks applied to logits: what is not allowed becomes minus infinity."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lmprog_runtime.constraint.native import load_library


def forbid(logits: NDArray[np.float32], masks: Sequence[NDArray[np.uint32] | None]) -> None:
    """In place: logits [rows, tokens] become -inf where the row's mask has a 0 bit. A mask of None allows all.

    One call for the batch; in the C++ core it lets go of the GIL.
    """
    rows, tokens = logits.shape
    library = load_library()
    if library is None or logits.strides[1] != logits.itemsize:
        _forbid_in_numpy(logits, masks)
        return
    addresses = (ctypes.c_void_p * rows)(*(None if mask is None else mask.ctypes.data for mask in masks))
    library.forbid(logits.ctypes.data, addresses, rows, logits.strides[0] // logits.itemsize, tokens)


def _forbid_in_numpy(logits: NDArray[np.float32], masks: Sequence[NDArray[np.uint32] | None]) -> None:
    for row, mask in zip(logits, masks, strict=True):
        if mask is not None:
            row[np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(row)] == 0] = -np.inf
