"Run notebooks from top to bottom and store their outputs, skipping the cells that `nbdev_test` skips."
import os
import sys
import traceback
from pathlib import Path

os.environ.setdefault('MPLBACKEND', 'module://matplotlib_inline.backend_inline')
from execnb.nbio import read_nb, write_nb  # noqa: E402
from execnb.shell import CaptureShell  # noqa: E402
from fastcore.xtras import working_directory  # noqa: E402
from nbdev.clean import clean_nb  # noqa: E402
from nbdev.config import get_config  # noqa: E402
from nbdev.process import NBProcessor  # noqa: E402


def _skipped(cell, flags):
    "Whether a processed cell is left out: not code, `eval: false`, flagged slow or gpu, or a call of the exporter."
    if cell.cell_type!='code': return True
    never = cell.directives_.get('eval:', [''])[0].lower()=='false'
    return never or bool(flags & cell.directives_.keys()) or 'nbdev_export(' in cell.source


def execute(path):
    "Run one notebook in its own folder and write its outputs back; an error in a cell stops with its traceback."
    path = Path(path).absolute()
    flags = set(get_config().tst_flags.split())
    processed, stored = NBProcessor(path, process=True).nb, read_nb(path)  # directives are cut out of the first only
    skip = lambda cell: _skipped(cell, flags)  # noqa: E731
    for cell in processed.cells: cell.pop('outputs', None)  # one that says nothing any more keeps them otherwise
    with working_directory(path.parent): CaptureShell(path).run_all(processed, exc_stop=True, preproc=skip)
    for run, keep in zip(processed.cells, stored.cells):
        if keep.cell_type=='code': keep['outputs'] = [] if skip(run) else run.get('outputs', [])
    clean_nb(stored)
    write_nb(stored, path)


def execute_fresh(path):
    "Run one notebook in a process of its own that shares what is imported already; its exit status."
    pid = os.fork()
    if pid: return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try: execute(path)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__=='__main__':
    if len(sys.argv)>2: import sandwich_repro.claims  # noqa: F401 -- torch and all that is slow to import, but no matplotlib, which keeps a state
    for name in sys.argv[1:]:
        if execute_fresh(name): sys.exit(1)
        print(f'executed {name}', flush=True)
