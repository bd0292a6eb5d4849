"Every notebook runs from top to bottom, in a process of its own."
import pytest
from processes import BIN, ROOT, TwoAtATime

NOTEBOOKS = {p.relative_to(ROOT/'nbs').with_suffix('').as_posix(): p for p in sorted((ROOT/'nbs').rglob('*.ipynb'))
             if not any(part.startswith(('.', '_')) for part in p.relative_to(ROOT/'nbs').parts)}
TIMEOUT = 240


@pytest.fixture(scope='module')
def outcomes():
    "The runs of all notebooks."
    runs = TwoAtATime({name: [BIN/'nbdev_test', '--path', path] for name, path in NOTEBOOKS.items()}, TIMEOUT)
    yield runs
    runs.close()


@pytest.mark.timeout(len(NOTEBOOKS)*TIMEOUT)
@pytest.mark.parametrize('name', NOTEBOOKS)
def test_notebook(name, outcomes):
    code, output = outcomes[name]
    assert code==0, output[-6000:]
