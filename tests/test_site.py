"The site, built here and opened in a real browser: nothing fails, nothing is fetched from elsewhere, everything links, reads and fits."
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest
from conftest import launched
from processes import ROOT

sys.path.insert(0, str(ROOT/'tools'))
NOTEBOOKS = sorted(p for p in (ROOT/'nbs').rglob('*.ipynb') if not any(q.startswith(('.', '_')) for q in p.relative_to(ROOT/'nbs').parts))
pytestmark = pytest.mark.timeout(900)


def copied(root):
    "The files of the checkout in another folder, as a clean clone has them."
    listed = subprocess.run(['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split('\0')):
        (root/name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT/name).is_file(): shutil.copyfile(ROOT/name, root/name)
    return root


def build(root):
    "Build the site of a checkout beside it: the folder, and what the builder had to say."
    out = root.parent/f'{root.name}_docs'
    r = subprocess.run([sys.executable, root/'tools'/'build_docs.py', '--engine', 'smalldocs', '--out', out], cwd=root, capture_output=True, text=True,
                       env=os.environ|{'PYTHONPATH': str(root)})
    assert r.returncode==0, r.stderr[-6000:]
    return out, r.stderr


@pytest.fixture(scope='session')
def sites(tmp_path_factory):
    "Two sites, built side by side from two copies of the checkout."
    folder = tmp_path_factory.mktemp('site')
    with ThreadPoolExecutor(2) as pool: return list(pool.map(lambda name: build(copied(folder/name)), ('one', 'two')))


@pytest.fixture(scope='session')
def site(sites):
    "A built site and what the builder had to say."
    return sites[0]


@pytest.fixture(scope='session')
def pages(site):
    "Text of every page by its path; other HTML files are a page's own resources."
    texts = {p.relative_to(site[0]).as_posix(): p.read_text(encoding='utf-8') for p in sorted(site[0].rglob('*.html'))}
    return {name: t for name, t in texts.items() if 'id="quarto-content"' in t}


class Quiet(SimpleHTTPRequestHandler):
    "A server that prints nothing."
    def log_message(self, *_): pass


@pytest.fixture(scope='session')
def server(site):
    "Address of the site on this machine."
    httpd = ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(Quiet, directory=site[0]))
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{httpd.server_port}/'
    httpd.shutdown()


def visible_text(page):
    "The words of a page's HTML that are not code, script, style or formula."
    text = re.sub(r'<(script|style|pre|code|math)\b.*?</\1>', ' ', page, flags=re.S)
    return unescape(re.sub(r'<[^>]+>', ' ', text))


# ---------------------------------------------------------------- what the files say

def test_every_notebook_is_a_page_in_the_sidebar_once(pages):
    assert len(pages)==len(NOTEBOOKS)
    sidebar = re.search(r'<nav id="quarto-sidebar".*?</nav>', next(iter(pages.values())), re.S)[0]
    linked = re.findall(r'class="sidebar-item-container"><a href="([^"]+)"', sidebar)
    first = next(iter(pages))
    assert sorted(urljoin(first, h) for h in linked)==sorted(pages)


def test_builder_has_nothing_to_complain_about(site):
    assert [line for line in site[1].splitlines() if line.startswith('note:')]==[]


def test_nothing_is_left_unrendered(pages):
    for name, page in pages.items():
        text = visible_text(page)
        for mark in (r'\$[^$\n]{1,80}\$', r'#\|', r':::', r'\{#[\w-]+\}', r'(?<!\w)@(?:fig|tbl|eq|sec)-', r'\\\(', r'\\\[', r'\?@'):
            assert not re.search(mark, text), f'{name}: {re.search(mark, text)[0]!r}'
        raw = re.search(r'.{20}`\]\(https?:.{20}', page)
        assert not raw, f'{name}: a link in a signature was left as Markdown: {raw[0]!r}'


def test_links_and_anchors_resolve(site, pages):
    ids = {name: set(map(unescape, re.findall(r'\sid="([^"]+)"', page))) for name, page in pages.items()}
    broken = []
    for name, page in pages.items():
        for href in map(unescape, re.findall(r'\s(?:href|src)="([^"]*)"', page)):
            if re.match(r'(?:[a-z][a-z0-9+.-]*:|//)', href) or href=='': continue
            path, anchor = urldefrag(urljoin(f'http://site/{name}', href))
            target = unquote(urlsplit(path).path).lstrip('/')
            target = f'{target}index.html' if target=='' or target.endswith('/') else target
            if not (site[0]/target).is_file(): broken.append(f'{name}: {href}')
            elif anchor and target in ids and unquote(anchor) not in ids[target]: broken.append(f'{name}: {href}')
    assert broken==[]


def test_ids_are_unique(pages):
    for name, page in pages.items():
        ids = re.findall(r'\sid="([^"]+)"', page)
        assert {i for i in ids if ids.count(i)>1}==set(), name


def test_columns_of_numbers_stand_right():
    "A number may have an error or an interval; a column with a word, or without any number, stands left."
    from site_stage import aligned
    columns = dict(model=['a', 'b'], ppl=['4.81 ± 0.57', '–'], erf=['0.47 (0.42 to 0.52)', '+1 (−2 to 3)'], level=['L_tr', '–'], paper=['–', '–'])
    rows = [''.join(f'<td>{cell}</td>' for cell in row) for row in zip(*columns.values())]
    table = '<thead><tr>'+''.join(f'<th>{c}</th>' for c in columns)+'</tr></thead><tbody>'+''.join(f'<tr>{r}</tr>' for r in rows)+'</tbody>'
    marked = re.findall(r'<t[hd]( class="number")?>', aligned(table))
    assert [bool(m) for m in marked]==[name in ('ppl', 'erf') for _ in range(3) for name in columns]


def test_reference_lists_every_public_name(pages):
    "Functions and classes with a link to their signature, constants without; nothing stale."
    listed = re.findall(r'<td[^>]*>(?:<a href="(\w+)\.html(?:#[^"]*)?">)?<code>(\w+)</code>', pages['reference.html'])
    public = (ROOT/'tests'/'public_names.txt').read_text(encoding='utf-8').split()
    assert sorted(name for _, name in listed)==sorted(n.rpartition('.')[2] for n in public if n.count('.')==2), 'run nbs/reference.ipynb again'
    for module, name in listed: assert not module or f'data-anchor-id="{name.lower()}"' in pages[f'{module}.html'], f'{module}.{name}'


def test_symbols_link_to_their_reference(pages):
    "Every documented function and class that a page mentions in prose, as code, is a link."
    documented = set(re.findall(r'<td[^>]*><a href="[^"]*"><code>(\w+)</code>', pages['reference.html']))
    assert documented, 'no reference at all'
    bare = defaultdict(set)
    for name, page in pages.items():
        body = re.sub(r'<pre\b.*?</pre>|<h\d.*?</h\d>|<a\b.*?</a>|<table\b.*?</table>', '', page, flags=re.S)
        bare[name] |= documented & set(re.findall(r'<code>(\w+)</code>', body))
    assert {name: found for name, found in bare.items() if found}=={}


def test_same_files_twice(sites):
    files = [{p.relative_to(d).as_posix(): p.read_bytes() for p in d.rglob('*') if p.is_file()} for d, _ in sites]
    assert sorted(files[0])==sorted(files[1])
    assert [n for n in files[0] if files[0][n]!=files[1][n]]==[]


# ---------------------------------------------------------------- what a browser sees

class Visit:
    "A tab on one page: what went wrong, and how much came over the wire."
    def __init__(self, browser, server, name=None):
        self.server = server
        self.tab = browser.new_context(reduced_motion='reduce').new_page()
        self.tab.on('console', lambda m: self.trouble.append(f'console: {m.text}') if m.type in ('error', 'warning') else None)
        self.tab.on('pageerror', lambda e: self.trouble.append(f'error: {e}'))
        self.tab.on('requestfailed', lambda r: self.trouble.append(f'failed: {r.url}'))
        self.tab.on('request', lambda r: None if r.url.startswith((server, 'data:', 'blob:')) else self.trouble.append(f'elsewhere: {r.url}'))
        self.tab.on('response', self.received)
        if name: self.open(name)

    def open(self, name):
        "Another page in the same tab, which still knows the style sheets: a third of the time of a new one."
        self.trouble, self.bytes = [], 0
        self.tab.emulate_media(color_scheme='light')
        self.tab.set_viewport_size(dict(width=1300, height=900))
        self.tab.goto(self.server+name)

    def received(self, r):
        if r.status>=400: self.trouble.append(f'{r.status}: {r.url}')
        self.bytes += int(r.headers.get('content-length', 0))

    def look(self, mode, script):
        "Change the light and the width of the window, let the page follow, and ask it something."
        scheme, width = mode
        self.tab.emulate_media(color_scheme=scheme)
        self.tab.set_viewport_size(dict(width=width, height=900))
        self.tab.wait_for_function(f'document.documentElement.classList.contains("quarto-dark")=={str(scheme=="dark").lower()}')
        self.tab.evaluate('Promise.all(document.getAnimations().map(a => a.finished))')
        return self.tab.evaluate(script)

    def __enter__(self): return self
    def __exit__(self, *_): self.tab.context.close()


IMAGES = '''() => { for (const i of document.images) i.loading = "eager";
  return Promise.all([...document.images].map(i => i.decode().then(() => i.alt.trim() ? null : `no alt: ${i.src}`, () => `broken: ${i.src}`)))
    .then(a => a.filter(Boolean)) }'''
WIDE = '''() => { const w = document.documentElement.clientWidth;
  return document.documentElement.scrollWidth>w ? [...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right>w+1)
    .map(e => e.tagName+"."+e.className).slice(-3) : [] }'''
# one token of each colour, a few formulas, rows and links stand for all: the rules look at every element they find
THINNED = '''() => { const seen = {}, few = (list, n) => [...list].slice(n).forEach(e => e.remove());
  few(document.querySelectorAll("#quarto-sidebar li.sidebar-item:not(:has(.active))"), FEW); few(document.querySelectorAll("#TOC li li"), FEW);
  document.querySelectorAll("tbody").forEach(t => few(t.rows, FEW));
  document.querySelectorAll("pre code span").forEach(s => { seen[s.className] = (seen[s.className] || 0)+1; if (seen[s.className]>2) s.replaceWith(s.textContent) });
  document.querySelectorAll("math").forEach((m, i) => { if (i>5) m.replaceChildren() }) }'''
SERIOUS = '''() => axe.run(document, {resultTypes: ["violations"], RULES}).then(r => r.violations.filter(v => ["serious", "critical"].includes(v.impact))
    .map(v => `${v.id}: ${v.nodes.length} × ${v.nodes[0].html.slice(0, 160)} ${[...v.nodes[0].any, ...v.nodes[0].all, ...v.nodes[0].none].map(c => c.message)[0]}`))'''


def looked_at(v, name, axe):
    "One page in four ways: {kind: problems}; all rows and links of the front page, a few of the others."
    v.open(name)
    looks = dict(images=v.look(('light', 1300), IMAGES), phone=v.look(('light', 390), WIDE), trouble=v.trouble)
    v.tab.evaluate(axe)
    v.tab.evaluate(THINNED.replace('FEW', '1000' if name=='index.html' else '4'))
    looks['light'] = v.look(('light', 1300), SERIOUS.replace('RULES', 'rules: {}'))
    looks['dark'] = v.look(('dark', 1300), SERIOUS.replace('RULES', 'runOnly: ["color-contrast"]'))
    return looks | {'weight': [v.bytes]}


@pytest.fixture(scope='session')
def findings(browser, server, pages):
    "Every page opened once, in two browsers side by side: {kind: {page: problems}}."
    import axe_playwright_python
    axe = (Path(axe_playwright_python.__file__).parent/'axe.min.js').read_text(encoding='utf-8')
    def half(names):
        with launched() as b, Visit(b, server) as v: return {name: looked_at(v, name, axe) for name in names}
    found, names = defaultdict(dict), list(pages)
    with ThreadPoolExecutor(2) as pool:
        for part in pool.map(half, (names[::2], names[1::2])):
            for name, looks in part.items():
                for kind, problems in looks.items(): found[kind][name] = list(problems)
    return found


@pytest.mark.parametrize('kind', ['trouble', 'images', 'phone', 'light', 'dark'])
def test_a_browser_finds_nothing(findings, kind):
    "No error and no request elsewhere; pictures load and are described; nothing sticks out of a phone; no serious accessibility rule is broken."
    found = {name: problems for name, problems in findings[kind].items() if problems}
    assert not found, json.dumps(found, indent=1, ensure_ascii=False)


def test_front_page_is_light(findings):
    weight = findings['weight']['index.html'][0]
    assert weight<=1024*1024, f'{weight/1024:.0f} kB'


@pytest.mark.parametrize('word', ['Sandwich', 'ERF'])
def test_search_finds(browser, server, word):
    with Visit(browser, server, 'index.html') as v:
        v.tab.locator('.smalldocs-search input').first.fill(word)
        v.tab.wait_for_selector('.search-result')
        hits = v.tab.locator('.search-result')
        assert any(word.lower() in t.lower() for t in hits.all_text_contents())
        hits.first.click()
        v.tab.wait_for_load_state()
        assert v.trouble==[]


def test_the_dark_switch_is_remembered(browser, server):
    with Visit(browser, server, 'index.html') as v:
        dark = 'document.documentElement.classList.contains("quarto-dark")'
        assert v.tab.evaluate(dark) is False
        v.tab.locator('.quarto-color-scheme-toggle').first.click()
        v.tab.wait_for_function(dark)
        v.tab.reload()
        v.tab.wait_for_function(dark)
