"The explorer in a real browser: its formulas and every slider against the library, runs, the shared address, phone, keyboard, accessibility."
import functools
import json
import math
import re
import shutil
import sys
import threading
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import ROOT
from sandwich_repro.absolute import Rotary, sinusoidal_embedding
from sandwich_repro.alibi import alibi_bias, alibi_slopes
from sandwich_repro.config import SCALES, run_key
from sandwich_repro.encodings import ENCODINGS
from sandwich_repro.learned import KerpleLog, KerplePower, LearnedSandwich, T5Bias, t5_bucket
from sandwich_repro.plot import ENCODING_COLORS
from sandwich_repro.position import relative_distance
from sandwich_repro.results import RunResult, save_result
from sandwich_repro.sandwich import compression_ratios, cosine_kernel, fit_log_curve, sandwich_bias, smoothed_sandwich_bias
from sandwich_repro.window import window_bias

sys.path.insert(0, str(ROOT/'tools'))
import explorer_data  # noqa: E402

NOTEBOOK = json.loads((ROOT/'nbs'/'explorer.ipynb').read_text(encoding='utf-8'))
PROSE = '\n\n'.join(''.join(c['source']) for c in NOTEBOOK['cells'] if c['cell_type']=='markdown')
PANELS = ('product', 'heads', 'lengths', 'runs', 'logcurve')
BIASES = [name for name in ENCODINGS if name not in ('none', 'sinusoidal', 'rotary')]
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- made-up runs and a page like the site's

def made_up_run(spec, reach, status='finished'):
    "A result whose gradient fades with `reach` tokens; without losses if it diverged."
    if status!='finished': return RunResult(spec, corpus=dict(name=spec.corpus, sha256='0'*64), training=dict(status=status))
    rng, lengths = np.random.default_rng(int(reach)), np.array(spec.eval.lengths)
    nll = rng.normal(2, .5, (30, 1))+.3*np.log2(spec.train_len/np.minimum(lengths, spec.train_len))+rng.normal(0, .05, (30, len(lengths)))
    cumulative = 1-np.exp(-np.arange(1, spec.eval.erf_len)/reach)
    return RunResult(spec, corpus=dict(name=spec.corpus, sha256='0'*64), training=dict(status=status), nll=nll, documents=(np.arange(30)//3).tolist(),
                     non_overlapping={int(n): float(20/np.log2(n)) for n in lengths[2:]}, cumulative=cumulative/cumulative[-1],
                     erf=int((cumulative/cumulative[-1]<=.99).sum())+1, erf_interval=[1, 200])


@pytest.fixture(scope='module')
def results():
    "A few runs of two scales."
    quick = SCALES['quick']
    specs = [(quick.spec('alibi'), 10), (quick.spec('sandwich'), 40), (quick.spec('t5', 'prose'), 25), (quick.spec('window', window=40), 5.5), (SCALES['smoke'].spec('alibi', shift=6), 3)]
    return [made_up_run(*s) for s in specs]+[made_up_run(replace(quick.spec('rotary'), seed=1), 1, 'diverged')]


class Quiet(SimpleHTTPRequestHandler):
    "A server that prints nothing."
    def log_message(self, *_): pass


@pytest.fixture(scope='module')
def server(results, tmp_path_factory):
    "Address of a folder with the notebook's panels on a page, with and without runs, and of the page that stands alone."
    root, stored = tmp_path_factory.mktemp('pages'), tmp_path_factory.mktemp('results')
    for run in results: save_result(run, stored)
    page = '\n'.join(re.findall(r'<div data-panel="\w+"></div>|<script src=[^>]*></script>', PROSE))
    for name, found in (('full', stored), ('empty', root/'nowhere')):
        shutil.copytree(ROOT/'nbs'/'explorer', root/name/'explorer', ignore=shutil.ignore_patterns('data.js', 'explorer.html'))
        explorer_data.write(found, root/name/'explorer')
        head = '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>x</title><link rel="icon" href="data:,"></head>'
        (root/name/'page.html').write_text(f'{head}<body><main><h1>x</h1>{page}</main></body></html>', encoding='utf-8')
    httpd = ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(Quiet, directory=root))
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{httpd.server_port}/'
    httpd.shutdown()


class Look:
    "A tab with the explorer, and all trouble it met."
    def __init__(self, browser, server, path, **options):
        self.trouble, self.server, self.bytes = [], server, 0
        self.tab = browser.new_context(**dict(viewport=dict(width=1200, height=900), reduced_motion='reduce') | options).new_page()
        self.tab.on('console', lambda m: self.trouble.append(f'console: {m.text}') if m.type in ('error', 'warning') else None)
        self.tab.on('pageerror', lambda e: self.trouble.append(f'error: {e}'))
        self.tab.on('request', lambda r: None if r.url.startswith((server, 'data:')) else self.trouble.append(f'elsewhere: {r.url}'))
        self.tab.on('response', self.received)
        self.open(path)

    def received(self, r):
        if r.status>=400: self.trouble.append(f'{r.status}: {r.url}')
        self.bytes += len(r.body())

    def open(self, path):
        "A fresh page."
        self.tab.goto('about:blank')
        self.tab.goto(self.server+path)
        self.tab.wait_for_function('window.Explorer?.ready')
        self.settle()

    def settle(self): self.tab.evaluate('new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))')

    def set(self, **settings):
        "Change settings; `__` stands for the dot in their names."
        self.tab.evaluate('s => Object.entries(s).forEach(([k, v]) => Explorer.store.set(k, v))', {k.replace('__', '.'): v for k, v in settings.items()})
        self.settle()

    def control(self, name): return self.tab.locator(f'[name="{name}"]')

    def values(self, panel): return {k.split('.')[1]: v for k, v in self.tab.evaluate('Explorer.store.values').items() if k.startswith(f'{panel}.')}

    def drawn(self, chart):
        "The curves a chart holds: x, then one row per series; gaps are NaN."
        rows = self.tab.evaluate('name => Explorer.charts[name].plot.data.map(row => Array.from(row, v => v ?? NaN))', chart)
        return [np.array(r) for r in rows]

    def __enter__(self): return self
    def __exit__(self, *_): self.tab.context.close()


@pytest.fixture(scope='module')
def look(browser, server):
    "One tab for all tests that leave no trace."
    with Look(browser, server, 'full/page.html') as opened: yield opened


# ---------------------------------------------------------------- formulas

def numbers(x): return np.asarray(x, dtype=np.float64)


def library_curve(name, p, n):
    "What the library makes of a panel's parameters, over n distances."
    d = torch.arange(n)
    if name=='alibi': return numbers(alibi_bias(d, torch.tensor([2.**-p['h']]))[0])
    if name=='window': return numbers(window_bias(d, p['w'], 1)[0])
    if name in ('sandwich', 'learned_sandwich'): encoding = LearnedSandwich(1, p['dbar']); encoding.ratios.data.fill_(p['ratio'])
    if name=='smoothed_sandwich': return numbers(smoothed_sandwich_bias(d, 1, p['dbar'], p['fit'])[0])*8/p['ratio']
    if name in ('kerple_log', 'kerple_power'):
        encoding = KerpleLog(1) if name=='kerple_log' else KerplePower(1)
        encoding.r1.data.fill_(p['r1']), encoding.r2.data.fill_(p['r2'])
    if name=='t5':
        encoding = T5Bias(1, p['buckets'], p['far'])
        encoding.table.data[:, 0] = -p['fall']*torch.arange(p['buckets'])
    return numbers(encoding.bias(d)[0].detach())


def js(look, expression, argument=None):
    "A number or array of the page's formulas."
    return numbers(look.tab.evaluate(f'a => {{ const m = Explorer.math, v = {expression}; return typeof v === "number" ? v : Array.from(v) }}', argument))


@pytest.mark.parametrize('recipe', ['paper', 'official'])
@pytest.mark.parametrize('heads', [1, 2, 3, 6, 8, 12, 20, 40, 64])
def test_ladders(look, heads, recipe):
    for shift in (-3, 0, 2.5): close(js(look, 'm.alibiSlopes(a[0], a[1], a[2])', [heads, recipe, shift]), numbers(alibi_slopes(heads, recipe, shift)), atol=1e-9)
    close(js(look, 'm.compressionRatios(a)', heads), numbers(compression_ratios(heads)))


@pytest.mark.parametrize('d_bar', [2, 4, 64, 128, 512])
def test_sandwich_and_its_fits(look, d_bar):
    d = torch.arange(8192)
    close(js(look, 'm.cosineKernel(8192, a)', d_bar), numbers(cosine_kernel(d, d_bar)))
    close(js(look, 'm.sandwichBias(8192, 8, a)', d_bar), numbers(sandwich_bias(d, 1, d_bar)[0]))
    for n in (2, 50, 777, 8192):
        close(js(look, 'm.fitLogCurve(m.sandwichBias(8192, 8, a[0]), a[1])', [d_bar, n]), fit_log_curve((cosine_kernel(d, d_bar)-d_bar/2)/8, n))
        close(js(look, 'm.smoothedSandwichBias(4096, 8, a[0], a[1])', [d_bar, n]), numbers(smoothed_sandwich_bias(d[:4096], 1, d_bar, n)[0]))


GRID = dict(alibi=[dict(h=h) for h in (-4, 0, .5, 3.25, 16)], window=[dict(w=w) for w in (1, 40, 4096)],
            sandwich=[dict(ratio=r, dbar=b) for r in (.25, 3, 8) for b in (2, 128)], learned_sandwich=[dict(ratio=2.5, dbar=48)],
            smoothed_sandwich=[dict(ratio=r, dbar=b, fit=n) for r in (.25, 8) for b in (16, 128) for n in (2, 50, 512)],
            kerple_log=[dict(r1=a, r2=b) for a in (.02, 1, 4) for b in (.02, .5, 2)], kerple_power=[dict(r1=a, r2=b) for a in (.02, 1, 4) for b in (.02, .5, 2)],
            t5=[dict(buckets=n, far=far, fall=.35) for n in (2, 8, 32, 64) for far in (48, 128, 512)])


@pytest.mark.parametrize('name', BIASES)
def test_curves_of_every_bias(look, name):
    for p in GRID[name]: close(js(look, 'Explorer.ENCODINGS[a[0]].curve(4096, a[1])', [name, p]), library_curve(name, p, 4096), err_msg=str(p))


def test_buckets_and_absolute_positions(look):
    for n, far in ((2, 48), (16, 16), (32, 128), (32, 512)):
        assert js(look, 'm.curve(5000, d => m.t5Bucket(d, a[0], a[1]))', [n, far]).tolist()==t5_bucket(torch.arange(5000), n, far).tolist()
    at = [0, 1, 63, 1857, 8191]
    for width in (4, 5, 16): close(js(look, 'a[0].flatMap(p => m.sinusoidal(p, a[1]))', [at, width]), numbers(sinusoidal_embedding(torch.tensor(at), width)).ravel())
    x = torch.randn(1, 1, len(at), 16, generator=torch.Generator().manual_seed(0))
    turned = Rotary(16).rotate(x, x, torch.tensor(at), torch.tensor(at))[0]
    close(js(look, 'a[0].flatMap((row, i) => m.rotate(row, a[1][i]))', [x[0, 0].tolist(), at]), numbers(turned).ravel())


# ---------------------------------------------------------------- panel 1

def attention(words, name, p, share, causal, silent, made):
    "Scaled logits and weights of a few words, from the page's made-up vectors and the library's encodings, in float64."
    x = torch.tensor([made['vectors'][w] for w in words], dtype=torch.float64)*(not silent)
    w_q, w_k = (torch.tensor(made[m], dtype=torch.float64).T for m in ('query', 'key'))
    at, d = torch.arange(len(words)), relative_distance(len(words))
    if name=='sinusoidal': x = x+share*sinusoidal_embedding(at, 8, dtype=torch.float64)
    q, k = x@w_q, x@w_k
    if name=='rotary': q, k = (t[0, 0] for t in Rotary(8).rotate(q[None, None], k[None, None], share*at, share*at))
    logits = q.double()@k.double().T/math.sqrt(8)
    if name in BIASES: logits = logits+share*torch.from_numpy(library_curve(name, p, len(words)))[d.abs()]
    return numbers(logits), numbers(logits.masked_fill((d<0) & causal, -torch.inf).softmax(-1))


@pytest.fixture(scope='module')
def made(look):
    "The page's made-up vectors of some words, and its two matrices."
    words = 'the dog that bit cat ran'.split()
    return look.tab.evaluate('ws => ({vectors: Object.fromEntries(ws.map(w => [w, Explorer.math.gaussians(w, 8)])), query: Explorer.math.matrix("query", 8), key: Explorer.math.matrix("key", 8)})', words)


def grid(look, i):
    "The numbers a reader sees in the i-th grid; hidden ones are NaN."
    return np.array(look.tab.evaluate('''i => [...document.querySelectorAll('[data-panel="product"] .ex-four table')[i].tBodies[0].rows]
        .map(r => [...r.cells].slice(1).map(c => c.textContent ? Number(c.textContent.replace("−", "-").replace("∞", "Infinity")) : NaN))''', i))


@pytest.mark.parametrize('name', ENCODINGS)
def test_attention_of_a_sentence(look, made, name):
    look.control('product.enc').select_option(name)
    for share, causal, silent, words in ((1, True, False, 'the dog that bit the cat ran'), (.5, False, False, 'the cat ran'), (1, True, True, 'the dog ran')):
        if name=='rotary' and share!=1: continue  # the library turns by whole positions
        look.control('product.text').fill(words)
        look.set(product__share=share, product__causal=causal, product__silent=silent)
        found, words = look.tab.evaluate('Explorer.product'), words.split()
        logits, weights = attention(words, name, look.values('product'), share, causal, silent, made)
        close(found['total'], logits), close(found['weights'], weights)
        hidden = ~np.tri(len(words), dtype=bool) & causal
        np.testing.assert_allclose(grid(look, 2), np.where(hidden, np.nan, logits), atol=.00501)
        np.testing.assert_allclose(grid(look, 3), np.where(hidden, np.nan, weights), atol=.00501)
        query = min(look.values('product')['query'], len(words)-1)
        close(look.drawn('product.weights')[2], weights[query])
    look.tab.evaluate('Explorer.store.reset("product.")')


def test_order_blind_only_without_mask_and_position(look):
    moved = {}
    for name, causal in (('none', False), ('none', True), ('alibi', False)):
        look.set(product__enc=name, product__causal=causal)
        moved[name, causal] = look.tab.evaluate('Explorer.product.moved')
    assert moved['none', False]<1e-12 and moved['none', True]>.1 and moved['alibi', False]<1e-12  # ALiBi knows how far, not which side
    look.set(product__enc='sinusoidal')
    assert look.tab.evaluate('Explorer.product.moved')>.1
    look.tab.evaluate('Explorer.store.reset("product.")')


def test_an_entry_is_built_from_its_vectors(look):
    look.tab.locator('[data-panel="product"] .ex-four table').first.locator('tbody tr').nth(5).locator('td').nth(3).click()
    look.settle()
    assert (look.values('product')['query'], look.values('product')['key'])==(5, 3)
    q, k, plain = (look.tab.evaluate(f'Explorer.product.{part}') for part in ('q[5]', 'k[3]', 'plain[5][3]'))
    close(np.dot(q, k)/math.sqrt(8), plain)
    rows = look.tab.locator('.ex-entry tbody tr').all_inner_texts()
    read = [[float(x.replace('−', '-').replace('Σ', '')) for x in r.split('\t')[1:] if x.strip()] for r in rows]
    np.testing.assert_allclose(read[2][:8], np.multiply(read[0], read[1]), atol=.02)
    np.testing.assert_allclose(read[2][8], sum(read[2][:8]), atol=.05)
    look.tab.evaluate('Explorer.store.reset("product.")')


# ---------------------------------------------------------------- every slider, moved with the keyboard

def expected(look, panel):
    "What the charts of a panel must show, from its settings and the library: {chart: rows below x}."
    v = look.values(panel)
    if panel=='product': return {'product.weights': [None, attention(v['text'].split(), v['enc'], v, v['share'], v['causal'], v['silent'], look.made)[1][min(v['query'], 6)]]}
    if panel=='logcurve':
        profile = sandwich_bias(torch.arange(8192), 1, v['dbar'])[0].double()*8/v['ratio']
        slope, intercept = fit_log_curve(profile, v['fit'])
        x = np.log1p(np.arange(v['span']))
        return {'logcurve.curve': [profile[:v['span']], slope*x+intercept, -.825*x-.8]}
    if panel=='lengths':
        n = max(v['trained'], v['tested'])
        return {'lengths.relative': [np.where(np.arange(n)<length, library_curve(v['enc'], v, n), np.nan) for length in (v['trained'], v['tested'])]}
    return heads_expected(v)


def heads_expected(v):
    "The head panel: the picked head's curve and weights, and the ladder."
    ladder = dict(alibi='h', sandwich='ratio', smoothed_sandwich='ratio', learned_sandwich='ratio').get(v['enc'])
    p, head, out = dict(v), min(v['head'], v['count'])-1, {}
    if v['enc']=='alibi':
        rungs = numbers(-alibi_slopes(v['count'], v['recipe']).double().log2())
        if v['h'] is not None: rungs[head] = v['h']
        if v['same']: rungs[:] = rungs[head]
        p['h'], out['heads.ladder'] = rungs[head]+v['shift'], [-(rungs+v['shift'])]
    elif ladder:
        rungs = numbers(compression_ratios(v['count']))
        if v['ratio'] is not None: rungs[head] = v['ratio']
        p['ratio'], out['heads.ladder'] = rungs[head], [rungs]
    curve = library_curve(v['enc'], p, v['span'])
    return out | {'heads.bias': [curve], 'heads.weight': [torch.from_numpy(curve).softmax(-1)]}


def check_charts(look, panel):
    for name, rows in expected(look, panel).items():
        drawn = look.drawn(name)[1:]
        if name=='heads.bias': drawn = drawn[-1:]
        for got, want in zip(drawn, rows):
            if want is not None: close(got, np.where(np.isfinite(want), want, np.nan), err_msg=f'{name} at {look.values(panel)}')


def sliders(look, panel):
    "Names of the sliders that are shown."
    return look.tab.eval_on_selector_all(f'[data-panel="{panel}"] input[type=range]', 'all => all.filter(x => x.offsetParent).map(x => x.name)')


@pytest.mark.parametrize('panel,name', [*((p, n) for p in ('product', 'heads', 'lengths') for n in BIASES), ('logcurve', '')])
def test_every_slider_moves_its_curves(look, made, panel, name):
    look.made, seen = made, set()
    if name: look.control(f'{panel}.enc').select_option(name)
    look.settle()
    check_charts(look, panel)
    for key in sliders(look, panel):
        before, slider = look.values(panel), look.control(key)
        for press in ('ArrowLeft', 'PageUp'):
            slider.press(press)
            look.settle()
            if look.values(panel)!=before: seen.add(key)
            check_charts(look, panel)
        assert slider.get_attribute('aria-valuetext'), f'{key} says no value'
    assert seen==set(sliders(look, panel)), 'a slider that moves nothing'
    look.tab.evaluate(f'Explorer.store.reset("{panel}.")')
    look.settle()


def test_ladder_and_effective_window(look):
    for heads, recipe, shift, head in ((8, 'paper', 0, 4), (12, 'official', 0, 9), (12, 'paper', -3, 12)):
        look.set(heads__count=heads, heads__recipe=recipe, heads__shift=shift, heads__head=head, heads__span=4096)
        slope = alibi_slopes(heads, recipe, shift)[head-1]
        share = alibi_bias(torch.arange(4096), slope[None])[0].double().softmax(-1).cumsum(-1)
        window = int((share<1-1/math.e-1e-9).sum())+1
        assert look.tab.evaluate('Explorer.charts["heads.weight"].spec.marks[0].label')==f'63 % within {window}'
        assert f'1/slope is {float(1/slope):.4g}' in look.tab.locator('[data-panel="heads"] .ex-said').inner_text()
    look.set(heads__same=True, heads__h=3, heads__shift=1)
    close(look.drawn('heads.ladder')[1], numbers(alibi_slopes(12, same_h=3, shift=1).log2()))
    look.tab.get_by_role('button', name='Back on the ladder').click()
    look.settle()
    assert look.values('heads')['h'] is None
    look.tab.evaluate('Explorer.store.reset("heads.")')


# ---------------------------------------------------------------- panel 3

@pytest.mark.parametrize('trained,tested', [(64, 256), (16, 2048), (128, 96)])
def test_relative_curves_stay_and_absolute_ones_move(look, trained, tested):
    made = look.tab.evaluate('({q: Explorer.math.matrix("query", 16), k: Explorer.math.matrix("key", 16), vq: Explorer.math.gaussians("query", 16), vk: Explorer.math.gaussians("key", 16)})')
    w_q, w_k = (torch.tensor(made[m], dtype=torch.float64) for m in 'qk')
    p, n = sinusoidal_embedding(torch.arange(tested), 16, dtype=torch.float64), torch.arange(tested)
    q, k = (torch.tensor(made[v], dtype=torch.float64).expand(1, 1, tested, 16) for v in ('vq', 'vk'))
    turned = Rotary(16).rotate(q, k, n, n)
    want = dict(sinusoidal=(p@w_k.T)@(w_q@p[-1])/4, rotary=(turned[1][0, 0]@turned[0][0, 0, -1])/4)
    for name, row in want.items():
        look.set(lengths__trained=trained, lengths__tested=tested, lengths__absolute=name)
        close(look.drawn('lengths.absolute')[2][:tested], numbers(row.flip(0)), atol=3e-5)
        found = look.tab.evaluate('Explorer.lengths')
        assert found['relative']['moved']==0
        assert (found['absolute']['moved']>.1)==(name=='sinusoidal')
        close(found['absolute']['unseen'], float(row.flip(0).softmax(-1)[trained:].sum()))
        swept = np.minimum(np.outer([trained-1, tested-1], 1e4**-(np.arange(8)/8)), 2*math.pi)
        close(found['beyond'], swept[1]-swept[0])
        assert look.tab.locator('.ex-dials .ex-unseen').count()==int((swept[1]-swept[0]>1e-9).sum())
    look.tab.evaluate('Explorer.store.reset("lengths.")')


# ---------------------------------------------------------------- panel 4

def test_a_run_and_its_receptive_field(look, results):
    for side, run in (('a', results[2]), ('b', results[1]), ('a', results[3])):
        look.control(f'runs.{side}').select_option(run_key(run.spec))
        look.settle()
        x, share = look.drawn(f'runs.{side}.gradient')
        close(share, numbers(run.cumulative)[x.astype(int)-1])
        mark = [m for m in look.tab.evaluate('s => Explorer.charts[`runs.${s}.gradient`].spec.marks', side) if m['label'].startswith('ERF')]
        assert [(m['x'], m['label']) for m in mark]==[(run.erf, f'ERF {run.erf}')]
        close(mark[0]['y'], run.cumulative[run.erf-1])
        assert run.cumulative[run.erf-1]>.99>=run.cumulative[run.erf-2]
        assert f'ERF {run.erf} tokens' in look.tab.locator('.ex-side .ex-said').nth('ab'.index(side)).inner_text()
        lengths, perplexity = look.drawn(f'runs.{side}.perplexity')[:2]
        assert tuple(lengths)==run.spec.eval.lengths
        np.testing.assert_allclose(perplexity, [run.perplexity(n) for n in run.spec.eval.lengths], rtol=1e-4)
        cells = look.tab.locator('.ex-side').nth('ab'.index(side)).locator('tbody tr').nth(5).inner_text().split('\t')
        read, rise = [float(x.replace('−', '-')) for x in ' '.join(cells[:3]).replace('±', '').split()], run.rise(256)
        np.testing.assert_allclose(read, [256, run.perplexity(256), rise.mean, (rise.high-rise.low)/2], atol=.0051)
        np.testing.assert_allclose(read[2:], [rise.mean, (rise.high-rise.low)/2], atol=.00056)
    look.tab.evaluate('Explorer.store.reset("runs.")')


def test_other_scales_and_diverged_runs(look, results):
    look.control('runs.a').select_option(run_key(results[5].spec))
    look.settle()
    assert 'diverged, no losses' in look.tab.locator('.ex-side .ex-said').first.inner_text()
    assert not look.tab.locator('.ex-side').first.locator('figure').first.is_visible()
    look.control('runs.scale').select_option('smoke')
    look.settle()
    assert 'alibi Δ=6 (code, scale smoke, seed 0, 30 segments)' in look.tab.locator('.ex-side .ex-said').first.inner_text()
    look.tab.evaluate('Explorer.store.reset("runs.")')


def test_data_is_short_and_exact(results, tmp_path):
    for run in results: save_result(run, tmp_path)
    data = explorer_data.explorer_data(tmp_path)
    assert data['colors']==ENCODING_COLORS and data['paper']==[-.825, -.8]
    assert {scale: len(runs) for scale, runs in data['scales'].items()}=={'quick': 5, 'smoke': 1}
    assert all(len(json.dumps(run))<4000 for runs in data['scales'].values() for run in runs)
    assert explorer_data.explorer_data(tmp_path/'nowhere')['scales']=={}


# ---------------------------------------------------------------- the page as a whole

SETTINGS = {'product.enc': 'kerple_log', 'product.r1': 2.5, 'product.share': .35, 'product.text': 'a & b = c', 'product.causal': False, 'heads.h': 2.25, 'heads.recipe': 'official', 'heads.count': 12,
            'lengths.tested': 1024, 'logcurve.fit': 8192, 'logcurve.log': False}


def test_the_address_holds_the_state(look, browser, server, results):
    settings = SETTINGS | {'runs.a': run_key(results[2].spec)}
    look.tab.evaluate('s => Object.entries(s).forEach(([k, v]) => Explorer.store.set(k, v))', settings)
    look.settle()
    look.tab.wait_for_function('location.hash.includes("runs.a")')
    address = look.tab.evaluate('location.hash')
    with Look(browser, server, f'full/page.html{address}') as other:
        assert other.tab.evaluate('Explorer.store.values')==look.tab.evaluate('Explorer.store.values')
        for chart in look.tab.evaluate('Object.keys(Explorer.charts)'):
            for mine, theirs in zip(look.drawn(chart), other.drawn(chart), strict=True): np.testing.assert_array_equal(mine, theirs)
        assert other.control('product.text').input_value()=='a & b = c'
        other.open('full/page.html#heads.shift=2')
        assert abs(other.tab.locator('[data-panel="heads"]').bounding_box()['y'])<100
        other.tab.evaluate('location.hash = "logcurve.fit=2"')
        other.tab.wait_for_function('Explorer.store.values["logcurve.fit"] === 2 && Explorer.store.values["product.enc"] === "alibi"')
        other.tab.evaluate('location.hash = "an-anchor"')
        other.settle()
        assert other.values('logcurve')['fit']==2
        assert other.trouble==[]
    look.tab.evaluate('Object.keys(Explorer.panels).forEach(p => Explorer.store.reset(p + "."))')
    look.tab.wait_for_function('location.hash === ""')
    look.settle()


def test_an_address_may_say_anything(browser, server):
    nonsense = 'heads.count=1e9&heads.enc=none&lengths.tested=-5&product.enc=<b>&product.query=99&runs.a=gone&runs.scale=x&logcurve.fit=51&logcurve.ratio=abc&unknown=1'
    with Look(browser, server, f'full/page.html#{nonsense}') as other:
        v = other.tab.evaluate('Explorer.store.values')
        assert (v['heads.count'], v['heads.enc'], v['lengths.tested'], v['product.enc'], v['logcurve.fit'], v['logcurve.ratio'])==(64, 'alibi', 8, 'alibi', 50, 8)
        assert other.trouble==[]


PROBLEMS = '''() => axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.map(v => `${v.id}: ${v.nodes.length} × ${v.nodes[0].html.slice(0, 200)}`))'''


@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_accessible_alone_and_on_a_phone(browser, server, scheme):
    import axe_playwright_python
    with Look(browser, server, 'full/explorer/explorer.html', color_scheme=scheme, viewport=dict(width=390, height=844), device_scale_factor=2) as v:
        v.tab.evaluate((Path(axe_playwright_python.__file__).parent/'axe.min.js').read_text(encoding='utf-8'))
        assert v.tab.evaluate(PROBLEMS)==[]
        assert v.tab.evaluate('document.documentElement.scrollWidth')<=390
        assert v.tab.locator('h2').count()==len(PANELS)
        assert v.trouble==[]


def test_controls_are_labelled_and_reached_by_keyboard(look):
    look.tab.evaluate('document.activeElement.blur()')
    wanted = look.tab.evaluate('[...document.querySelectorAll(".ex-panel :is(input, select, button)")].filter(x => x.offsetParent).length')
    reached = set()
    for _ in range(wanted+20):
        look.tab.keyboard.press('Tab')
        now = look.tab.evaluate('''() => { const x = document.activeElement; if (!x.matches(".ex-panel :is(input, select, button)")) return null;
            return [[...document.querySelectorAll(".ex-panel *")].indexOf(x), x.labels?.length ? x.labels[0].textContent : x.textContent, getComputedStyle(x).outlineStyle] }''')
        if now: reached.add(tuple(now))
    assert len(reached)==wanted
    assert [r for r in reached if not r[1].strip() or r[2]=='none']==[]


def test_every_chart_says_what_it_shows(look):
    said = look.tab.eval_on_selector_all('.ex-plot', 'all => all.map(x => [x.getAttribute("role"), x.getAttribute("aria-label"), x.querySelector("canvas")?.width ?? 0])')
    assert all(role=='img' and len(label)>40 and width>200 for role, label, width in said)
    inked = look.tab.evaluate('''Object.values(Explorer.charts).map(c => { const k = c.plot.ctx.canvas; return c.plot.ctx.getImageData(0, 0, k.width, k.height).data.some(v => v) })''')
    assert all(inked) and len(inked)==len(said)


def test_lines_differ_in_more_than_colour(look):
    for chart, series in look.tab.evaluate('Object.entries(Explorer.charts).map(([n, c]) => [n, c.spec.series.filter(s => s.label).map(s => [s.dash ?? "solid", s.width ?? 2])])'):
        assert len({tuple(s) for s in series})==len(series), chart


def test_colours_follow_the_light(browser, server):
    with Look(browser, server, 'full/page.html', color_scheme='light') as v:
        v.set(heads__enc='t5')
        stroke = 'Explorer.charts["heads.bias"].spec.series.at(-1).color'
        light = v.tab.evaluate(stroke)
        assert light==ENCODING_COLORS['t5']
        v.tab.evaluate('document.documentElement.classList.add("quarto-dark")')
        v.tab.wait_for_function(f'{stroke} !== "{light}"')
        assert min(map(int, re.findall(r'\d+', v.tab.evaluate(stroke))))>90  # nearly black before


def test_nothing_to_show_is_said(browser, server):
    with Look(browser, server, 'empty/page.html') as v:
        assert 'reproduce --scale quick --out results' in v.tab.locator('[data-panel="runs"]').inner_text()
        check_charts(v, 'logcurve')
        assert v.trouble==[]


def test_it_is_light_and_asks_nobody(look, browser, server):
    with Look(browser, server, 'full/page.html') as v: assert v.bytes<=600_000, v.bytes
    assert look.trouble==[]


def test_the_notebook_holds_every_panel_under_its_title(look):
    titles = look.tab.evaluate('Object.fromEntries(Object.entries(Explorer.panels).map(([name, panel]) => [name, panel.title]))')
    assert tuple(titles)==PANELS
    assert re.findall(r'^## (.*)$|<div data-panel="(\w+)">', PROSE, re.M)==[pair for name in PANELS for pair in ((titles[name], ''), ('', name))]


def test_vendored_library_has_its_licence():
    folder = ROOT/'nbs'/'explorer'
    assert 'uPlot (v1.6.32)' in (folder/'uPlot.iife.min.js').read_text(encoding='utf-8')[:200]
    assert 'Permission is hereby granted' in (folder/'uPlot-LICENSE.txt').read_text(encoding='utf-8')
