"""20,000 different schemas through one vocabulary: the memory of the process stops growing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lmprog_runtime.constraint.native import load_library

FLOOD = """
import json, resource, sys
from pathlib import Path
from lmprog_runtime.constraint.compiler import compile_constraint
from lmprog_runtime.constraint.lru import LruByBytes
from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.request import Constraint
from tests.support.constraints import small_vocabulary

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

vocabulary = small_vocabulary(0, "abcdefghijklmnopqrstuvwxyz0123456789{}[],:\\" .-")
vocabulary.compiled = LruByBytes(most_bytes=8 * 2**20)
refused = 0
for i in range(20_000):
    schema = {"type": "object", "properties": {f"k{i}": {"enum": ["a" * (i % 90), i]}}, "additionalProperties": False}
    if i % 50 == 0:
        schema = {"type": "array", "uniqueItems": True, "minItems": i}
    try:
        grammar = compile_constraint(Constraint("json_schema", json.dumps(schema)), vocabulary)
        grammar.mask(grammar.advance_bytes(grammar.start, b'{"'))
    except RequestRefused:
        refused += 1
    if i == 4_000:
        before = resident()
print(resident() - before, vocabulary.compiled.nbytes, refused)
"""
GROWTH = 16 * 2**20
"""Bytes: what allocators need for themselves. Kept for good, the schemas after the first 4,000 would take far more."""


@pytest.mark.skipif(load_library() is None, reason="the C++ core is not built")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_bounded_under_a_flood_of_schemas() -> None:
    found = subprocess.run([sys.executable, "-c", FLOOD], capture_output=True, text=True, check=True)
    growth, cached, refused = map(int, found.stdout.split())
    assert cached <= 8 * 2**20
    assert refused == 400
    assert growth < GROWTH
