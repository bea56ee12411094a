"""The throttled stream: what is shown, when, and where."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import pytest

from ipyllama.display import NotebookView, NullView, ProgressLine, ReplyStream, TerminalView, make_view, reply_bundle
from ipyllama.reply import Delta, Event, Finished, Prefill, Queued, Reply, Timings, Usage


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Output:
    """One output of a notebook cell: every bundle with the time at which it was shown."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.shown: list[tuple[float, dict[str, str]]] = []
        self.displays = 0
        self.view = NotebookView(self._display)

    def _display(self, bundle: dict[str, str]) -> Callable[[dict[str, str]], None]:
        self.displays += 1
        self._record(bundle)
        return self._record

    def _record(self, bundle: dict[str, str]) -> None:
        self.shown.append((self.clock.now, bundle))

    @property
    def plain(self) -> list[str]:
        return [bundle["text/plain"] for _, bundle in self.shown]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def output(clock: Clock) -> Output:
    return Output(clock)


REPLY = Reply("one two", usage=Usage(1, 2, 3, 4), timings=Timings(first_token=0.5, decode=1))


def paced(clock: Clock, events: list[Event], step: float) -> Iterator[Event]:
    for event in events:
        yield event
        clock.now += step


def play(stream: ReplyStream, events: Iterable[Event]) -> None:
    """What a job does with a stream: feed it, and flush where the events end in an error."""
    try:
        for event in events:
            stream.feed(event)
    except BaseException:
        stream.flush()
        raise


def test_updates_keep_their_distance(clock: Clock, output: Output) -> None:
    words = [f"{i} " for i in range(1000)]
    reply = Reply("".join(words))
    events: list[Event] = [*map(Delta, words), Finished(reply)]
    play(ReplyStream(output.view, clock=clock), paced(clock, events, 0.004))
    times = [time for time, _ in output.shown]
    gaps = [after - before for before, after in pairwise(times[:-1])]
    assert times[0] == 100.0  # the first word at once
    assert output.plain[0] == "0 "
    assert min(gaps) >= 0.05 - 1e-9
    assert max(gaps) < 0.06
    assert 70 <= len(times) <= 4.0 * 20 + 2
    assert output.displays == 1  # the rest are updates in place
    assert output.shown[-1][1] == reply_bundle(reply)


def test_each_update_holds_the_whole_text(clock: Clock, output: Output) -> None:
    play(ReplyStream(output.view, clock=clock), paced(clock, [Delta("one"), Delta(" two"), Finished(REPLY)], 1))
    assert [bundle.get("text/markdown") for _, bundle in output.shown[:2]] == ["one", "one two"]
    assert "text/html" not in output.shown[1][1]
    assert output.shown[2][1].keys() == {"text/plain", "text/markdown", "text/html"}


def test_progress_waits_a_second_and_gives_way_to_the_text(clock: Clock, output: Output) -> None:
    events = [Prefill(i, 100, 0, i / 20) for i in range(0, 101, 10)]
    play(ReplyStream(output.view, clock=clock), paced(clock, [*events, Delta("one")], 0.5))
    assert output.plain[0] == "[████····················] reading the prompt: 20 of 100 tokens · 20% · 4 s left"
    assert "left" not in output.plain[-2]
    assert output.plain[-1] == "one"
    assert output.displays == 1


def test_the_first_text_does_not_wait_for_the_progress(clock: Clock, output: Output) -> None:
    stream = ReplyStream(output.view, clock=clock)
    stream.feed(Prefill(9, 10, 0, 2.0))
    clock.now += 0.001
    stream.feed(Delta("one"))
    assert output.plain[-1] == "one"


def test_a_quick_prompt_shows_no_progress(clock: Clock, output: Output) -> None:
    play(ReplyStream(output.view, clock=clock), [Prefill(0, 10, 0, 0.0), Prefill(10, 10, 0, 0.9), Finished(REPLY)])
    assert len(output.shown) == 1


def test_the_queue_is_told(clock: Clock, output: Output) -> None:
    play(ReplyStream(output.view, clock=clock), [Queued(2), Queued(1), Queued(0), Delta("one")])
    assert output.plain == ["waiting: 2 answers ahead", "waiting: 1 answer ahead", "", "one"]


def test_without_streaming_only_the_answer_is_shown(clock: Clock, output: Output) -> None:
    events = [Queued(1), Prefill(1, 2, 0, 5.0), Delta("one two"), Finished(REPLY)]
    play(ReplyStream(output.view, stream=False, clock=clock), events)
    assert [bundle for _, bundle in output.shown] == [reply_bundle(REPLY)]


def failing(*events: Event, error: BaseException) -> Iterator[Event]:
    yield from events
    raise error


def test_an_error_leaves_all_that_was_written(clock: Clock, output: Output) -> None:
    with pytest.raises(RuntimeError):
        play(ReplyStream(output.view, clock=clock), failing(Delta("one"), Delta(" two"), error=RuntimeError()))
    assert output.plain == ["one", "one two"]


def test_an_error_takes_the_progress_away(clock: Clock, output: Output) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(ReplyStream(output.view, clock=clock), failing(Prefill(1, 2, 0, 3.0), error=KeyboardInterrupt()))
    assert output.plain[-1] == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


EVENTS: list[Event] = [Queued(1), Prefill(1, 2, 0, 1.5), Delta("one"), Delta(" two"), Finished(REPLY)]
FOOTER = "— 6 prompt tokens: 1 reused, 2 restored, 3 computed · first token 500 ms · 4 tokens at 3.0/s"


def test_a_file_gets_plain_text_once(clock: Clock) -> None:
    stream = io.StringIO()
    play(ReplyStream(TerminalView(stream), clock=clock), [*EVENTS[1:]])
    assert stream.getvalue() == f"one two\n{FOOTER}\n"


def test_a_terminal_gets_progress_on_one_line(clock: Clock) -> None:
    stream = Terminal()
    play(ReplyStream(TerminalView(stream), clock=clock), EVENTS[1:])
    written = stream.getvalue()
    assert written.startswith("\r\x1b[K\x1b[2m[████████████············] reading the prompt")
    assert written.endswith(f"\r\x1b[Kone two\n\x1b[2m{FOOTER}\x1b[0m\n")


def test_a_terminal_shows_control_characters_harmless() -> None:
    stream = Terminal()
    TerminalView(stream).text("a\x1b[2Jb")
    assert stream.getvalue() == "a␛[2Jb"


@pytest.mark.parametrize(("text", "shown"), [("", "(empty reply)"), (" \n", "(only white space)"), ("a\n", "a")])
def test_a_terminal_ends_the_answer_with_one_line_end(text: str, shown: str) -> None:
    stream = io.StringIO()
    TerminalView(stream).reply(Reply(text))
    assert stream.getvalue().startswith(f"{shown}\n— 0 prompt tokens")


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    assert isinstance(make_view(None, quiet=True), NullView)
    play(ReplyStream(make_view(None, quiet=True), clock=clock), EVENTS)
    assert capsys.readouterr() == ("", "")


def test_a_shell_with_a_kernel_is_a_notebook() -> None:
    class Shell:
        kernel = object()

    assert isinstance(make_view(Shell()), NotebookView)
    assert isinstance(make_view(object()), TerminalView)


def test_the_progress_of_a_load(clock: Clock, output: Output) -> None:
    line = ProgressLine("loading smollm2", output.view, clock=clock)
    for done in range(0, 101, 10):
        assert line(done * 10**6, 10**8) is True
        clock.now += 0.2
    line.finish("smollm2 loaded in 2.2 s")
    assert output.plain[0] == "[████████████············] loading smollm2: 50.0 MB of 100 MB · 50% · 1 s left"
    assert output.plain[-1] == "smollm2 loaded in 2.2 s"
    assert output.displays == 1


def test_a_quick_load_without_summary_shows_nothing(clock: Clock, output: Output) -> None:
    line = ProgressLine("loading", output.view, clock=clock)
    line(1, 2)
    line.finish()
    assert output.shown == []


def test_a_fetch_of_unknown_size_shows_what_has_come(clock: Clock, output: Output) -> None:
    line = ProgressLine("fetching", output.view, clock=clock)
    clock.now += 2
    line(5_000_000, 0)
    line.finish()
    assert output.plain == ["fetching: 5.0 MB", ""]


def test_importing_the_display_imports_nothing_heavy() -> None:
    code = "import sys, ipyllama.display; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {"markdown_it", "mdit_py_plugins", "pygments", "IPython", "numpy", "tqdm"}


def test_what_takes_long_to_show_is_shown_less_often(clock: Clock) -> None:
    class Slow(NullView):
        shown = 0

        def text(self, text: str, tokens: int = 0) -> None:
            Slow.shown += 1
            clock.now += 0.02

    stream = ReplyStream(Slow(), clock=clock)
    for _ in range(100):
        stream.feed(Delta("word "))
        clock.now += 0.01
    assert Slow.shown == pytest.approx(100 * 0.01 / 0.18, abs=1.5)
