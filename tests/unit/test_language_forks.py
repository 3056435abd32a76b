"""Branches: isolation, alignment, seeds, racing, growing."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lmprog import Cancelled, InvalidArgument, ScriptedBackend, UnknownVariable, assistant, function, gen, select, user
from lmprog.context import branch_seed
from tests.support.language import counting, error_of, no_threads_left

pytestmark = pytest.mark.timeout(20)


def run(body: Any, backend: ScriptedBackend | None = None, **options: Any) -> Any:
    return function(body).run(backend=backend or counting(), **options)


# -- isolation ----------------------------------------------------------------------------------------------------


def test_branches_are_isolated() -> None:
    seen: dict[str, Any] = {}

    def body(s: Any) -> None:
        s["notes"], s["k"], s["deep"] = [], 0, {"a": [1]}
        branches = s.fork(3)
        for i, branch in enumerate(branches):
            branch["notes"].append(i)
            branch["k"] = i + 1
            branch["deep"]["a"].append(i)
        s["notes"].append("parent")
        seen["parent"] = (s["notes"], s["k"], s["deep"])
        seen["branches"] = [(b["notes"], b["k"], b["deep"]) for b in branches]

    run(body)
    assert seen["parent"] == (["parent"], 0, {"a": [1]})
    assert seen["branches"] == [([i], i + 1, {"a": [1, i]}) for i in range(3)]


def test_values_still_being_made_are_isolated_too() -> None:
    def body(s: Any) -> None:
        s += gen("data", schema={})
        left, right = s.fork(2)
        left["data"].append("left")
        assert (s["data"], left["data"], right["data"]) == ([1], [1, "left"], [1])

    run(body, ScriptedBackend("[1]", delay=0.005))


def test_value_that_cannot_be_copied_is_named() -> None:
    def body(s: Any) -> None:
        s["lock"] = threading.Lock()
        s.fork(2)

    with pytest.raises(InvalidArgument, match=r"s\['lock'\] cannot be copied into a branch .*Python variable"):
        run(body)


def test_texts_of_branches_do_not_mix() -> None:
    def body(s: Any) -> None:
        s += "root" + gen("a")
        left, right = s.fork(2)
        left += " L" + gen("x")
        right += " R" + gen("x")
        s += " P"
        assert (left.text(), right.text(), s.text()) == ("root n1 L n2", "root n1 R n3", "root n1 P")
        assert "x" not in s

    run(body)


def test_fork_shares_the_prefix() -> None:
    backend = counting()

    def body(s: Any) -> None:
        s += "one two three" + gen("a")
        branches = s.fork(4)
        branches += " more" + gen("x")

    run(body, backend)
    assert [call.prompt for call in backend.calls[1:]] == ["one two three n1 more"] * 4


def test_nested_forks_have_paths() -> None:
    def body(s: Any) -> None:
        s += "r"
        for i, a in enumerate(s.fork(2)):
            a += f"{i}"
            for k, b in enumerate(a.fork(2)):
                b += f".{k}" + gen("v")
                s[f"v{i}{k}"] = b.text()

    state = run(body)
    assert [state[f"v{i}{k}"] for i in range(2) for k in range(2)] == ["r0.0 n1", "r0.1 n2", "r1.0 n3", "r1.1 n4"]


# -- groups -------------------------------------------------------------------------------------------------------


def test_names_and_positions() -> None:
    def body(s: Any) -> None:
        group = s.fork(["a", "b", 7])
        assert (len(group), group.names, [k for k, _ in group.items()]) == (3, ["a", "b", 7], ["a", "b", 7])
        assert group["b"] is group[1] is list(group)[1]
        assert group[7] is group[2] is group[-1]
        assert [b is group[i] for i, b in enumerate(group)] == [True] * 3
        with pytest.raises(KeyError, match="no branch 'c'; there are 'a', 'b', 7"):
            group["c"]
        with pytest.raises(IndexError, match="no branch 3"):
            group[3]
        numbers = s.fork([10, 20])
        assert numbers[20] is list(numbers)[1]
        assert len(s.fork([])) == len(s.fork(0)) == 0

    run(body)


@pytest.mark.parametrize("bad", ["ab", -1, True, 2.0, ["a", "a"], [1.5], None, {"a": 1}])
def test_bad_branches(bad: Any) -> None:
    with pytest.raises(InvalidArgument):
        run(lambda s: s.fork(bad))


def test_appending_to_a_group() -> None:
    def body(s: Any) -> None:
        group = s.fork(3)
        group += "a"
        group += ["0", "1" + gen("x"), "2"]
        group += lambda i: str(i)
        group += gen("y")
        group[1] += "!"
        assert [b.text() for b in group] == ["a00 n2", "a1 n11 n3!", "a22 n4"]
        with pytest.raises(InvalidArgument, match="A list of 2 cannot be shared out over 3 branches"):
            group += ["a", "b"]
        with pytest.raises(InvalidArgument, match="not int"):
            group += 5
        with pytest.raises(InvalidArgument, match="cannot be replaced"):
            group[0] = s

    run(body)


def test_growing_a_group() -> None:
    backend = counting()

    def body(s: Any) -> None:
        s += "root"
        group = s.fork(2, temperature=0.7)
        group += gen("x")
        more = group.grow(2)
        named = group.grow(["extra"])
        for branch in [*more, *named]:
            branch += gen("x")
        assert group.names == [0, 1, 2, 3, "extra"]
        with pytest.raises(InvalidArgument, match="both be named 'extra'"):
            group.grow(["extra"])
        group.join()
        assert s["x"] == [f" n{i}" for i in range(1, 6)]
        with pytest.raises(InvalidArgument, match="parent has gone on"):
            group.grow()

    run(body, backend, seed=7)
    assert len({call.sampling.seed for call in backend.calls}) == 5
    assert {call.sampling.temperature for call in backend.calls} == {0.7}


def test_with_block_ends_the_branches_and_cancels_them_on_error() -> None:
    backend = counting(delay=lambda call: 0.005 if call.number == 1 else 5)

    def body(s: Any) -> None:
        with s.fork(1) as done:
            done += gen("x")
        with pytest.raises(InvalidArgument, match="branch 0 any more: it has ended"):
            done += "more"
        assert done[0]["x"] == " n1"
        assert backend.open_streams == 1
        failed = s.fork(2)
        failed += gen("x")
        with pytest.raises(RuntimeError, match="oops"), failed:
            raise RuntimeError("oops")
        assert isinstance(error_of(lambda: failed[1]["x"]), Cancelled)

    with no_threads_left():
        run(body, backend)
    assert backend.open_streams == 0


def test_branch_cancelled_before_its_fork_has_run() -> None:
    backend = counting(delay=0.01)

    def body(s: Any) -> None:
        s += gen("x")
        group = s.fork(2)
        group += gen("v")
        group[0].cancel()
        assert isinstance(error_of(lambda: group[0]["v"]), Cancelled)
        assert group[1]["v"] == " n2"

    with no_threads_left():
        run(body, backend)
    assert backend.open_streams == 0


# -- join ---------------------------------------------------------------------------------------------------------


def ragged(s: Any, on_error: str = "raise") -> None:
    s += "root"
    s["p"] = "parent"
    s["kept"] = "parent"
    group = s.fork(3)
    for i, branch in enumerate(group):
        if i != 1:
            branch += f" {i}" + gen("v")
            branch["p"] = i
    group.join(on_error=on_error)


def test_ragged_join_keeps_its_alignment() -> None:
    """One entry per branch: None where a branch has nothing, its own view where it did not set the name itself."""
    state = run(ragged)
    assert (state["v"], state["p"], state["kept"]) == ([" n1", None, " n2"], [0, "parent", 2], "parent")
    assert state.text() == "root"


@pytest.mark.parametrize("delay", [0, 0.01])
def test_join_with_a_failed_branch(delay: float) -> None:
    boom = RuntimeError("boom")

    def backend() -> ScriptedBackend:
        return counting(errors={2: boom}, delay=delay)

    state = run(ragged, backend())
    assert [error_of(read) for read in (lambda: state["v"], lambda: state["p"], state.text)] == [boom] * 3
    state = run(lambda s: ragged(s, "keep"), backend())
    assert (state["v"], state["p"]) == ([" n1", None, boom], [0, "parent", boom])
    state = run(lambda s: ragged(s, "drop"), backend())
    assert (state["v"], state["p"]) == ([" n1", None], [0, "parent"])


def test_join_with_a_value_that_cannot_be_read() -> None:
    def body(s: Any, on_error: str) -> Any:
        group = s.fork(2)
        group += gen("v", schema={}, max_tokens=1)
        group.join(on_error=on_error)
        return s["v"]

    backend = ScriptedBackend(['{"a": 1}', "5", '{"a": 1}', "5", '{"a": 1}', "5"])
    kept = run(lambda s: body(s, "keep"), backend).ret_value
    assert [type(kept[0]).__name__, kept[1]] == ["IncompleteOutput", 5]
    assert run(lambda s: body(s, "drop"), backend).ret_value == [5]
    with pytest.raises(ValueError, match="was cut"):
        run(lambda s: body(s, "raise"), backend)


def test_join_does_not_wait_for_slow_branches_to_report_an_error() -> None:
    def body(s: Any) -> None:
        group = s.fork(2)
        group += gen("v")
        group.join()

    backend = counting(errors={2: OSError("down")}, delay=lambda call: 5 if call.number == 1 else 0.01)
    state = run(body, backend)
    assert isinstance(error_of(lambda: state["v"]), OSError)
    state.cancel()


def test_join_again_in_a_loop_gathers_again() -> None:
    def body(s: Any) -> None:
        for _ in range(2):
            group = s.fork(2)
            group += gen("v")
            group.join()

    assert run(body)["v"] == [" n3", " n4"]


def test_join_by_text() -> None:
    def body(s: Any) -> None:
        s += "root "
        group = s.fork(2)
        group += lambda i: f"[{i}" + gen("v") + "]"
        group.join("append_text")
        s += " end" + gen("z")

    backend = counting()
    state = run(body, backend)
    assert state.text() == "root [0 n1][1 n2] end n3"
    assert backend.calls[-1].prompt == "root [0 n1][1 n2] end"
    assert "v" not in state


def test_join_by_text_of_whole_turns() -> None:
    def body(s: Any) -> None:
        s += user("q")
        group = s.fork(2)
        group += lambda i: assistant(f"a{i}") + user("next")
        group.join("concate_and_append")

    state = run(body)
    assert [m["content"] for m in state.messages()] == ["q", "a0", "next", "a1", "next"]


def test_join_by_text_refuses_turns_that_do_not_fit() -> None:
    def body(s: Any) -> None:
        with s.assistant():
            group = s.fork(1)
            from lmprog import assistant_end

            group += assistant_end()
            group.join("append_text")

    with pytest.raises(InvalidArgument, match="Branch 0 is in the no turn, its parent in the assistant turn"):
        run(body)


@pytest.mark.parametrize("options", [{"mode": "sum"}, {"on_error": "ignore"}])
def test_bad_join(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"join has|on_error is"):
        run(lambda s: s.fork(1).join(**options))


# -- seeds and samples --------------------------------------------------------------------------------------------


def seeds_of(body: Any, **options: Any) -> list[Any]:
    backend = counting()
    run(body, backend, **options).sync()
    return [call.sampling.seed for call in backend.calls]


def eight(s: Any) -> None:
    group = s.fork(8, temperature=1.0)
    group += gen("x", max_tokens=8)


def test_branch_seeds_differ_repeat_and_depend_on_seed_and_path_only() -> None:
    assert seeds_of(eight) == [None] * 8
    seeds = seeds_of(eight, seed=7)
    assert seeds == [branch_seed(7, (i,)) for i in range(8)]
    assert len(set(seeds)) == 8
    assert seeds_of(eight, seed=7) == seeds
    assert not set(seeds_of(eight, seed=8)) & set(seeds)


def test_seed_of_the_root_is_the_seed() -> None:
    assert seeds_of(lambda s: s.__iadd__(gen("x")), seed=7) == [7]


def test_seed_of_a_gen_is_combined_too_and_later_forks_differ() -> None:
    def body(s: Any) -> None:
        for _ in range(2):
            group = s.fork(2)
            group += gen("x", seed=7) + select("c", ["a", "b"], temperature=1.0)

    seeds = seeds_of(body)
    drawn = [seed for seed in seeds if seed is not None]
    assert len(set(drawn)) == 4


def test_sampling_of_branches_is_between_gen_and_run() -> None:
    backend = counting()

    def body(s: Any) -> None:
        group = s.fork(["cold", "hot"], sampling=[{"temperature": 0}, {}], temperature=0.9, top_p=0.5)
        group += gen("x", top_p=0.6)
        inner = group["hot"].fork(1, min_p=0.1)
        inner += gen("x")

    run(body, backend, temperature=0.3, min_p=0.2)
    seen = [(c.sampling.temperature, c.sampling.top_p, c.sampling.min_p) for c in backend.calls]
    assert seen == [(0.0, 0.6, 0.2), (0.9, 0.6, 0.2), (0.9, 0.5, 0.1)]


def test_bad_sampling_of_branches() -> None:
    with pytest.raises(InvalidArgument, match="sampling has 1 items for 2 branches"):
        run(lambda s: s.fork(2, sampling=[{}]))
    with pytest.raises(TypeError, match=r"fork\(\) has no parameter 'temprature'; did you mean 'temperature'"):
        run(lambda s: s.fork(2, temprature=1))


@pytest.mark.parametrize("delay", [0, 0.005])
def test_samples_of_one_gen(delay: float) -> None:
    backend = counting(delay=delay)

    def body(s: Any) -> None:
        s += "a" + gen("x", n=3, temperature=1.0) + " b" + gen("y")

    state = run(body, backend, seed=5)
    assert (state["x"], state["y"], state.text()) == ([" n1", " n2", " n3"], " n4", "a n1 b n4")
    assert [c.sampling.seed for c in backend.calls] == [*(branch_seed(5, (i,)) for i in range(3)), 5]
    assert {c.sampling.n for c in backend.calls} == {None}
    assert [info["finish_reason"] for info in state.get_meta_info("x")["samples"]] == ["stop"] * 3
    assert backend.open_streams == 0


def test_typed_samples() -> None:
    assert run(lambda s: s.__iadd__(gen("x", n=2, dtype=int, temperature=1.0)), ScriptedBackend(["1", "2"]))["x"] == [
        1,
        2,
    ]


def test_samples_at_temperature_zero_warn_at_the_program_line() -> None:
    with pytest.warns(UserWarning, match="3 samples at temperature 0") as caught:
        run(lambda s: s.__iadd__(gen("x", n=3, temperature=0)))
    assert caught[0].filename == __file__


def test_failed_sample_fails_the_state_and_cancels_the_others() -> None:
    boom = RuntimeError("boom")
    backend = counting(errors={2: boom}, delay=lambda call: 5 if call.number != 2 else 0.01)
    with no_threads_left():
        state = run(lambda s: s.__iadd__(gen("x", n=3, temperature=1.0)), backend)
        assert error_of(lambda: state["x"]) is boom
    assert backend.open_streams == backend.running == 0


# -- races --------------------------------------------------------------------------------------------------------


def by_number(*seconds: float) -> Any:
    return lambda call: seconds[call.number - 1]


def test_first_cancels_the_losers() -> None:
    backend = counting(delay=by_number(5, 0.03, 0.01, 5))

    def body(s: Any) -> list[str]:
        group = s.fork(["a", "b", "c", "d"])
        group += gen("v")
        winners = group.first(2)
        assert isinstance(error_of(lambda: group["a"]["v"]), Cancelled)
        return [b["v"] for b in winners]

    with no_threads_left():
        assert run(body, backend).ret_value == [" n3", " n2"]
    assert backend.open_streams == backend.running == 0


def test_first_passes_over_failures_and_raises_when_too_many_fail() -> None:
    down = OSError("down")

    def body(s: Any, k: int) -> list[str]:
        group = s.fork(3)
        group += gen("v")
        return [b["v"] for b in group.first(k)]

    assert run(lambda s: body(s, 2), counting(errors={1: down}, delay=0.005)).ret_value == [" n2", " n3"]
    with no_threads_left():
        assert (
            error_of(lambda: run(lambda s: body(s, 3), counting(errors={2: down}, delay=by_number(5, 0.01, 5)))) is down
        )


@pytest.mark.parametrize("k", [0, 4, True, "1"])
def test_bad_first(k: Any) -> None:
    with pytest.raises(InvalidArgument, match="from 1 to 3"):
        run(lambda s: s.fork(3).first(k))


def test_best_and_vote() -> None:
    def body(s: Any) -> tuple[Any, Any, Any]:
        group = s.fork(4)
        group += gen("v", dtype=int)
        return group.best("v")["v"], group.best(lambda b: -b["v"])["v"], group.vote("v")

    backend = ScriptedBackend(["5", "9", "5", "1"], errors={4: OSError("down")}, delay=0.003)
    assert run(body, backend).ret_value == (9, 5, 5)
    down = OSError("down")
    assert error_of(lambda: run(body, ScriptedBackend(down))) is down


def test_unknown_variable_in_best() -> None:
    with pytest.raises(UnknownVariable, match="branch 0 has no variable 'w'; it has 'v'"):
        run(lambda s: (g := s.fork(1), g.__iadd__(gen("v")), g.best("w")))
