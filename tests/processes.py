"Commands run in processes of their own, two at a time, each test waiting for its own."
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent


def run(command, timeout, cwd=ROOT):
    "Return code and combined output; a command past its time is killed with its children and its code is 124."
    process = subprocess.Popen([str(c) for c in command], cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        out, _ = process.communicate(timeout=timeout)
        return process.returncode, out
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        return 124, f'{out}\nkilled after {timeout} s'


class TwoAtATime:
    "Starts all of its commands on the first question, two at a time in the given order, and answers by name."
    def __init__(self, commands, timeout, cwd=ROOT):
        self.commands, self.timeout, self.cwd, self.results = commands, timeout, cwd, None

    def __getitem__(self, name):
        if self.results is None:
            self.pool = ThreadPoolExecutor(2)
            self.results = {k: self.pool.submit(run, c, self.timeout, self.cwd) for k, c in self.commands.items()}
        return self.results[name].result()

    def close(self):
        "Drop what has not started."
        if self.results is not None: self.pool.shutdown(cancel_futures=True)
