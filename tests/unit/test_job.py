"""What a job tells the one who waits for it."""

from __future__ import annotations

import threading

from ipyllama.engine import Job
from ipyllama.reply import Event, Finished, Prefill, Reply


def test_the_first_piece_of_a_prompt_is_not_read_in_silence() -> None:
    job, shown = Job(lambda job: None), list[Event]()
    reply = Reply(text="", finish_reason="stop")
    job.emit(Prefill(256, 1000, 256, 0.0))
    threading.Timer(1.5, job.finish, [reply]).start()
    assert job.run(shown.append) is reply
    assert shown == [Prefill(256, 1000, 256, 0.0), Prefill(256, 1000, 256, 1.0), Finished(reply)]
