"What all tests share: one thread a process, no network, no window, one browser, and a closing report of sizes."
import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
for _name in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'OPENBLAS_NUM_THREADS'): os.environ.setdefault(_name, '1')
os.environ.update(HF_HUB_OFFLINE='1', MPLBACKEND='Agg', TOKENIZERS_PARALLELISM='false', PYTHONDONTWRITEBYTECODE='1')
os.environ['PYTHONPATH'] = os.pathsep.join(dict.fromkeys([str(ROOT), *filter(None, os.environ.get('PYTHONPATH', '').split(os.pathsep))]))
if str(ROOT) not in sys.path: sys.path.insert(0, str(ROOT))


def chromium():
    "The browser of the machine: $CHROMIUM, or Debian's, or Chrome."
    return os.environ.get('CHROMIUM') or next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None)


@contextmanager
def launched():
    "A headless browser for one thread."
    from playwright.sync_api import sync_playwright
    with sync_playwright() as p:
        b = p.chromium.launch(executable_path=chromium(), args=['--no-sandbox', '--disable-gpu'])
        yield b
        b.close()


@pytest.fixture(scope='session')
def browser():
    "A headless browser; without one these tests are skipped, but never in CI."
    if chromium() is None:
        message = 'no Chromium here: install Debian\'s `chromium`, or name a binary in $CHROMIUM'
        pytest.fail(message) if os.environ.get('CI')=='true' else pytest.skip(message)
    with launched() as b: yield b


def pytest_terminal_summary(terminalreporter):
    "Print what `record_property('report', line)` collected: things worth knowing that fail nothing."
    lines = [v for reports in terminalreporter.stats.values() for r in reports for k, v in getattr(r, 'user_properties', ()) if k=='report']
    if lines:
        terminalreporter.section('reported, not failed')
        for line in dict.fromkeys(lines): terminalreporter.write_line(line)


@pytest.fixture
def call(monkeypatch, capsys):
    "Run the command line in this process: its status, output and errors"
    from sandwich_repro import cli
    def run(*words):
        monkeypatch.setattr(sys, 'argv', ['sandwich-repro', *map(str, words)])
        with pytest.raises(SystemExit) as stop: cli.main()
        said = capsys.readouterr()
        return stop.value.code or 0, said.out, said.err.strip()
    return run
