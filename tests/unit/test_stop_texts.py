"""Which stop string ends a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmprog import ScriptedBackend, function, gen
from lmprog.backends.speculation import SpeculativeBackend
from lmprog.stop_texts import first_stop

TEXTS = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4)


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("no stop here", ["\n"], None),
        ("text", [], None),
        ("one\ntwo.", [".", "\n"], (3, "\n")),
        ("xaby", ["a", "ab"], (1, "ab")),
        ("xaby", ["ab", "a"], (1, "ab")),
        ("xac", ["ab", "a"], (1, "a")),
    ],
)
def test_the_leftmost_stop_is_found_and_of_those_the_longest(text, stops, expected):
    assert first_stop(text, stops) == expected


@given(TEXTS, STOPS, st.integers(0, 12))
def test_no_stop_begins_earlier_and_none_at_the_same_place_is_longer(text, stops, beyond):
    ends = [(at, -len(stop), stop) for stop in stops for at in range(len(text)) if text.startswith(stop, at)]
    expected = min(((at, size, stop) for at, size, stop in ends if at - size > beyond), default=None)
    assert first_stop(text, stops, beyond) == (expected and (expected[0], expected[2]))
    assert first_stop(text, stops) == first_stop(text, stops, 0)


@given(TEXTS.filter(bool), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4))
def test_written_ahead_or_not_the_same_stop_ends_a_gen(text, stops):
    def asked(backend):
        state = function(lambda s: s.__iadd__(gen("x", 64, stop=stops))).run(backend=backend)
        return state["x"], state.get_meta_info("x")["matched_stop"]

    found = first_stop(text, stops)
    expected = (text[: found[0]], found[1]) if found else (text, None)
    assert asked(ScriptedBackend(text)) == asked(SpeculativeBackend(ScriptedBackend(text), 64)) == expected


@given(TEXTS, STOPS)
def test_the_runtime_matches_the_same_stop(text, stops):
    from lmprog_runtime.stops import StopMatcher

    found = first_stop(text, stops)
    match = StopMatcher(stops).push(text)
    assert match.matched == (found and found[1])
    assert found is None or match.text == text[: found[0]]
