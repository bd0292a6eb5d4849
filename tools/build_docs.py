"""Build the site into `_docs`: with `nbdev_docs` where Quarto is installed, else with smalldocs, which is pure Python.
Both read the same `_quarto.yml`, the same processed notebooks and the same reference, and give pages the same names."""
import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
os.chdir(ROOT)
sys.path[:0] = [str(ROOT)]
from fastcore.script import call_parse  # noqa: E402
from nbdev.config import get_config  # noqa: E402
from nbdev.serve import proc_nbs  # noqa: E402
import explorer_data  # noqa: E402
from site_finish import finish  # noqa: E402
from site_reference import install  # noqa: E402
from site_stage import stage  # noqa: E402

KNOWN = ('html-math-method is ignored', 'output-file is not read by smalldocs')  # what site_finish does instead


def with_quarto():
    "nbdev's own way; in this process, so that the reference is ours."
    from nbdev.quarto import nbdev_docs
    (ROOT/'README.md').touch()  # newer than the index: nbdev leaves it to tools/readme.py
    nbdev_docs.__wrapped__(n_workers=0)


def notebooks_beside(site, pages, nbs):
    "The notebooks themselves, to download and run."
    for page in pages:
        to = site/'notebooks'/page.src
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(nbs/page.src, to)


def with_smalldocs(out):
    "Process, stage, build, finish; the old site stays until the new one is whole."
    import smalldocs.site
    cfg = get_config()
    shutil.rmtree(cfg.config_path/'_proc', ignore_errors=True)
    proc = proc_nbs(n_workers=0, force=True)
    with tempfile.TemporaryDirectory() as folder:
        src = Path(folder)/'site'
        pages, pictures = stage(proc, src)
        shutil.rmtree(proc)
        site = smalldocs.site.build(src, quiet=True)
        for warning in site.warnings:
            if not warning.endswith(KNOWN): print(f'note: {warning}', file=sys.stderr)
        for name, raw in pictures.items():
            (site.out/name).parent.mkdir(parents=True, exist_ok=True)
            (site.out/name).write_bytes(raw)
        notebooks_beside(site.out, pages, cfg.nbs_path)
        repo = dict(nbs=cfg.nbs_path.name, **{k: cfg[k] for k in ('git_url', 'branch', 'user', 'repo')})
        finish(site.out, {p.out: p.src for p in pages}, f'{cfg.doc_host}{cfg.doc_baseurl}', repo)
        shutil.rmtree(out, ignore_errors=True)
        shutil.move(site.out, out)
    return len(pages)


@call_parse
def main(
    engine:str='auto', # 'quarto', 'smalldocs', or 'auto': Quarto where it is installed
    out:str=None, # folder of the site; `_docs` by default
):
    "Build the site"
    install()
    explorer_data.write()
    if engine=='quarto' or (engine=='auto' and shutil.which('quarto')): return with_quarto()
    out = Path(out) if out else get_config().doc_path
    print(f'{with_smalldocs(out)} pages in {out.name}/')
