"""Stop strings: streamed in any pieces, the text before the first stop is shown, and nothing of a stop leaks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmprog_runtime.stops import StopMatcher

letters = st.text("ab,", min_size=1, max_size=4)


def _stream(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    matcher, shown = StopMatcher(stops), []
    for piece in pieces:
        match = matcher.push(piece)
        shown.append(match.text)
        if match.matched is not None:
            return shown, match.matched
    return [*shown, matcher.flush()], None


@given(stop=letters, text=st.lists(st.text("ab,", max_size=5), max_size=8))
def test_one_stop_cuts_where_str_find_says(stop: str, text: list[str]) -> None:
    whole = "".join(text)
    shown, matched = _stream([stop], text)
    at = whole.find(stop)
    assert "".join(shown) == (whole if at < 0 else whole[:at])
    assert matched == (None if at < 0 else stop)


@given(stops=st.lists(letters, min_size=1, max_size=3), text=st.text("ab,", max_size=20))
def test_given_at_once_the_leftmost_stop_wins_whatever_the_order(stops: list[str], text: str) -> None:
    forward = StopMatcher(stops).push(text)
    assert forward == StopMatcher(stops[::-1]).push(text)
    hits = [at for stop in stops if (at := text.find(stop)) >= 0]
    if hits:
        assert forward.text == text[: min(hits)]
        assert forward.text + str(forward.matched) + forward.rest == text


@given(stops=st.lists(letters, max_size=3), text=st.lists(st.text("ab,", max_size=3), max_size=8))
def test_no_text_is_lost_and_only_a_true_start_of_a_stop_is_held(stops: list[str], text: list[str]) -> None:
    matcher, shown = StopMatcher(stops), ""
    for at, piece in enumerate(text):
        match = matcher.push(piece)
        shown += match.text
        if match.matched is not None:
            return
        held = "".join(text[: at + 1])[len(shown) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
    assert shown + matcher.flush() == "".join(text)


def test_before_min_tokens_a_stop_is_text() -> None:
    matcher = StopMatcher(["ab"])
    assert matcher.push("xab", is_active=False).text == "xab"
    assert matcher.push("yab").matched == "ab"


def test_case_d08_several_stops() -> None:
    assert StopMatcher(["]", ",", '"']).push('John", "x]') == ("John", '"', ', "x]')
    assert _stream([" when it hit"], ["so", " when", " it", " hit", " me"]) == (["so", "", "", ""], " when it hit")
