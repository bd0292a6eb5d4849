"Give the explorer what only Python knows: the runs of `results/` in short, the colours, the paper's log curve; and put it all in one file."
import csv
import json
import math
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path: sys.path.insert(0, str(ROOT))
from sandwich_repro.config import run_key  # noqa: E402
from sandwich_repro.encodings import ENCODINGS  # noqa: E402
from sandwich_repro.perplexity import paired_difference  # noqa: E402
from sandwich_repro.plot import ENCODING_COLORS  # noqa: E402
from sandwich_repro.results import load_results, write_atomically  # noqa: E402

ASSETS = ROOT/'nbs'/'explorer'
POINTS = 64  # of a cumulative curve


def rounded(x, digits=4): return round(float(x), digits) if math.isfinite(x) else None


def half_width(interval):
    "Half of a 95 % interval; None where it is unbounded."
    return rounded((interval.high-interval.low)/2)


def thinned(cumulative, *keep):
    "A cumulative curve at some numbers of tokens, denser near the end of the text, always at those to keep."
    last = len(cumulative)
    k = sorted({*np.unique(np.geomspace(1, last, POINTS).round().astype(int)).tolist(), *(n for n in keep if n and n<=last)}) if last else []
    return dict(k=k, share=[rounded(cumulative[n-1], 5) for n in k])


def run_summary(result):
    "What the explorer shows of one run."
    spec = result.spec
    summary = dict(key=run_key(spec), label=spec.label, encoding=spec.encoding, corpus=spec.corpus, scale=spec.scale, seed=spec.seed, trainLen=spec.train_len, segments=len(result.nll),
                   status=result.training['status'], lengths=list(spec.eval.lengths), nll=[], half=[], rise=[], blocks={}, cumulative=thinned(()), erf=None, erfInterval=[],
                   erfLen=spec.eval.erf_len)
    if result.diverged: return summary
    for n in spec.eval.lengths:
        losses, rise = result.losses(n), result.rise(n) if spec.train_len in spec.eval.lengths else None
        summary['nll'].append(rounded(losses.mean()))
        summary['half'].append(half_width(paired_difference(losses, np.zeros_like(losses), groups=result.documents)))
        summary['rise'].append([rounded(rise.mean), half_width(rise)] if rise else [None, None])
    summary.update(blocks={int(n): rounded(ppl) for n, ppl in result.non_overlapping.items()}, erf=result.erf, erfInterval=list(result.erf_interval),
                   cumulative=thinned(result.cumulative, result.erf, spec.train_len))
    return summary


def place(result):
    "Where a run stands in the lists: by text, encoding, name, training length, segments and seed."
    spec = result.spec
    return spec.corpus, [*ENCODINGS, spec.encoding].index(spec.encoding), spec.label, spec.train_len, spec.eval.n_segments, spec.seed


def paper_log_curve(table):
    "Slope and intercept that the paper prints for h = 8, from the table of its facts."
    if not table.exists(): return []
    with table.open(encoding='utf-8', newline='') as file: rows = {(r['row'], r['column']): r['value'] for r in csv.DictReader(file)}
    return [float(rows['sandwich h=8', f'log {part}']) for part in ('slope', 'intercept')]


def explorer_data(results):
    "All of it, as JSON can hold it: `results` is an output folder, which may be empty or missing."
    scales = {}
    for result in sorted(load_results(results), key=place): scales.setdefault(result.spec.scale, []).append(run_summary(result))
    return dict(colors=ENCODING_COLORS, paper=paper_log_curve(ROOT/'results'/'paper.csv'), scales=scales)


def scripts():
    "The explorer's scripts in the order in which `load.js` fetches them."
    text = (ASSETS/'load.js').read_text(encoding='utf-8')
    return json.loads(text[text.index('files = [')+8:text.index('];')+1])


def standalone(folder):
    "One HTML file with everything in it, which opens from anywhere: a double click, a notebook's frame."
    read = lambda name: (folder if name=='data.js' else ASSETS)/name  # noqa: E731
    text = lambda name: read(name).read_text(encoding='utf-8')  # noqa: E731
    styles = ''.join(f'<style>{text(name)}</style>\n' for name in ('uPlot.min.css', 'explorer.css'))
    code = ''.join(f'<script>{text(name)}</script>\n' for name in scripts())
    return ('<!doctype html>\n<html lang="en" class="ex-standalone">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<title>Explorer · sandwich_repro</title>\n<link rel="icon" href="data:,">\n{styles}</head>\n<body>\n<main data-explorer><h1>Explorer</h1></main>\n{code}'
            '<script>Explorer.start()</script>\n</body>\n</html>\n')


def write(results=ROOT/'results', folder=ASSETS):
    "Write data.js and explorer.html into the folder of the explorer's files."
    folder = Path(folder)
    data = json.dumps(explorer_data(results), ensure_ascii=False, allow_nan=False).replace('<', r'\u003c')  # no tag inside a script
    write_atomically(folder/'data.js', f'window.Explorer ??= {{}};\nExplorer.data = {data};\n')
    write_atomically(folder/'explorer.html', standalone(folder))


if __name__=='__main__': write(*sys.argv[1:])
