"""Children end with their parent, whatever ends it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streams.local import Child, LocalFailure, LocalStackError
from tests.integration.local.conftest import PS, is_gone
from tests.integration.service import eventually

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('up', flush=True); time.sleep(600)"
)

# A parent that starts a stack, prints its children, and waits to be killed.
PARENT = """
import sys, time
from pathlib import Path
from streams.local import Child, LocalStack
stubborn = Child("Stubborn", [sys.executable, "-c", sys.argv[1]], log=Path(sys.argv[2]), grace=0.2)
worker = [sys.executable, "-c", "import time; time.sleep(600)"]
stack = LocalStack(kafka=sys.argv[3] or None, workers=1, worker_command=worker)
stack.start()
children = [stubborn, stack.redis_server, *stack.workers]
children += [] if sys.argv[3] else [stack.broker]
print(*(child.pid for child in children), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("number", "kafka", "count"),
    [(signal.SIGKILL, "", 4), (signal.SIGTERM, "127.0.0.1:1", 3)],
    ids=["a whole stack, SIGKILL", "with a broker of others, SIGTERM"],
)
def test_all_children_end_when_the_parent_is_killed(
    number: signal.Signals, kafka: str, count: int, tmp_path: Path
) -> None:
    log = tmp_path / "stubborn.log"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, STUBBORN, str(log), kafka],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as parent:
        assert parent.stdout is not None
        try:
            pids = [int(text) for text in parent.stdout.readline().split()]
            assert len(pids) == count
            assert not any(map(is_gone, pids))
        finally:
            parent.send_signal(number)
        parent.wait()
        eventually(lambda: all(map(is_gone, pids)))


def test_the_program_ends_when_its_guard_is_killed(tmp_path: Path) -> None:
    child = Child("Child", [sys.executable, "-c", STUBBORN], log=tmp_path / "log")
    assert child.pid is not None
    guard = subprocess.check_output([PS, "-o", "ppid=", "-p", str(child.pid)], text=True)
    os.kill(int(guard), signal.SIGKILL)
    eventually(lambda: is_gone(child.pid))


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    refuses = STUBBORN.replace("signal.SIG_IGN", "lambda *_: print('no', flush=True)")
    child = Child("Child", [sys.executable, "-c", refuses], log=tmp_path / "log", grace=0.3)
    eventually(lambda: child.log_tail() == ["up"])
    child.terminate()
    eventually(lambda: child.log_tail() == ["up", "no"])
    child.stop()
    assert child.exit_code == 128 + signal.SIGKILL
    assert is_gone(child.pid)


def test_a_program_that_obeys_sigterm_exits_by_itself(tmp_path: Path) -> None:
    code = (
        "import signal, sys; print('up', flush=True); signal.sigwait({signal.SIGTERM}); sys.exit(7)"
    )
    code = f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}}); {code}"
    child = Child("Child", [sys.executable, "-c", code], log=tmp_path / "log")
    eventually(lambda: child.log_tail() == ["up"])
    child.stop()
    assert child.exit_code == 7
    child.stop()  # again is fine


def test_the_log_tail_has_only_lines_of_this_start(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "child.log"
    for text in ("first", "second"):
        child = Child("Child", ["sh", "-c", f"echo {text}; echo problem >&2; exit 3"], log=log)
        assert child.wait(30) == 3
        assert child.log_tail() == [text, "problem"]
    assert log.read_text() == "first\nproblem\nsecond\nproblem\n"
    with pytest.raises(LocalStackError) as caught:
        child.wait_for("never", 5)
    assert caught.value.reason is LocalFailure.EXITED
    assert re.search(r"\b3\b", str(caught.value).partition(str(log))[0])
    assert "problem" in str(caught.value)
    assert str(log) in str(caught.value)
