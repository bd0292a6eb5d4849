"Turn the pages that smalldocs wrote into the site: MathML, nbdev's page names, links inside the site, nothing fetched from elsewhere."
import html
import json
import logging
import posixpath
import re
from io import BytesIO
from pathlib import Path

MATH = re.compile(r'<span class="math (inline|display)">\\[(\[](.*?)\\[)\]]</span>', re.S)
ANCHOR = re.compile(r'\bid="([^"]+)"')
LINK = re.compile(r'(<a\b[^>]*?\shref=")([^"]*)(")')
IN_CODE = re.compile(r'\[`([^`\]<]+)`\]\((https?://[^)\s<]+)\)')  # what nbdev makes of a name in a comment of a signature
ELSEWHERE = re.compile(r'<(?:link|script)[^>]*\b(?:src|href)="https?://[^"]*"[^>]*>(?:</script>)?')


def mathml(formulas):
    "MathML for pairs of TeX and is-display, from one run of pandoc; a formula it cannot read is an error."
    import pypandoc
    if not formulas: return {}
    blocks = [dict(t='Para', c=[dict(t='Math', c=[dict(t='DisplayMath' if d else 'InlineMath'), tex])]) for tex, d in formulas]
    doc = json.dumps({'pandoc-api-version': [1, 23, 1], 'meta': {}, 'blocks': blocks})
    out = re.findall(r'<p>(.*?)</p>', pypandoc.convert_text(doc, 'html', 'json', extra_args=['--mathml']), re.S)
    bad = [tex for (tex, _), m in zip(formulas, out, strict=True) if '<math' not in m]
    if bad: raise ValueError(f'formulas that no MathML came of: {bad}')
    return dict(zip(formulas, map(spaced, out), strict=True))


def spaced(math):
    "A thin space between an operator's name and its argument, which browsers leave out, unless a bracket follows."
    return re.sub(r'(<mo>(?:&#8289;|\u2061)</mo>)(</mrow>)?(?!(?:<mrow>)?<mo[^>]*>\()', r'\1<mspace width="0.167em"></mspace>\2', math)


class Finisher:
    "All pages of a site, read once, rewritten, written once."
    def __init__(self, site, sources, base, repo):
        self.site, self.base, self.repo = site, base.rstrip('/'), repo
        self.renamed = {re.sub(r'\.ipynb$', '.html', src): out for out, src in sources.items()}
        self.sources = sources
        self.pages = {new: (site/old).read_text(encoding='utf-8') for old, new in self.renamed.items()}
        for old in self.renamed: (site/old).unlink()
        self.anchors = {p: set(map(html.unescape, ANCHOR.findall(t))) for p, t in self.pages.items()}

    def link(self, page, href):
        "A link of a page with today's page names, relative where it stays in the site, without an anchor that is not there."
        href = html.unescape(href)
        if href.startswith(f'{self.base}/'): target = href[len(self.base)+1:]
        elif re.match(r'[a-z][a-z0-9+.-]*:|//', href): return href
        else:
            path, mark, anchor = href.partition('#')
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
            target = f"{'index.html' if target=='.' else target}{mark}{anchor}"
        path, mark, anchor = target.partition('#')
        path = self.renamed.get(path, path)
        while anchor and path in self.anchors and anchor not in self.anchors[path]: anchor = anchor.rpartition('.')[0]  # a method is on its class
        to = posixpath.relpath(path, posixpath.dirname(page) or '.') if path!=page or not anchor else ''
        return to+(f'#{anchor}' if anchor else '')

    def page(self, name, text):
        "One finished page."
        text = IN_CODE.sub(r'<a href="\2">\1</a>', ELSEWHERE.sub('', text))
        text = LINK.sub(lambda m: m[1]+html.escape(self.link(name, m[2]))+m[3], text)
        if name in self.sources: text = re.sub(r'(id="title-block-header".*?)</header>', lambda m: f'{m[1]}{self.openers(name)}</header>', text, count=1, flags=re.S)
        return accessible(text)

    def openers(self, name):
        "Where to get the notebook behind a page: its source, the file itself, a hosted service."
        src = self.sources[name]
        up = '../'*name.count('/')
        links = {'View source': f'{self.repo["git_url"]}/blob/{self.repo["branch"]}/{self.repo["nbs"]}/{src}',
                 'Open this notebook': f'{up}notebooks/{src}',
                 'Run it in Colab': f'https://colab.research.google.com/github/{self.repo["user"]}/{self.repo["repo"]}/blob/{self.repo["branch"]}/{self.repo["nbs"]}/{src}'}
        return '<p class="notebook-links">'+' · '.join(f'<a href="{html.escape(h)}">{t}</a>' for t, h in links.items())+'</p>'

    def write(self):
        "Rewrite and save every page, the search index, the site map and the style sheets."
        formulas = {(html.unescape(tex), kind=='display') for t in self.pages.values() for kind, tex in MATH.findall(t)}
        made = mathml(sorted(formulas))
        for name, text in self.pages.items():
            text = MATH.sub(lambda m: made[html.unescape(m[2]), m[1]=='display'], text)
            text = self.page(name, text)
            (self.site/name).write_text(text, encoding='utf-8')
        self.indexes()
        styles(self.site)

    def indexes(self):
        "Page names in the search index and the site map, which carries no dates."
        index = json.loads((self.site/'search.json').read_text(encoding='utf-8'))
        for e in index:
            path, mark, anchor = e['href'].partition('#')
            e['href'] = e['objectID'] = self.renamed.get(path, path)+mark+anchor
            e['text'] = re.sub(r'\s*\{#[\w-]+\}|#\| .*', '', e['text'])
        (self.site/'search.json').write_text(json.dumps(index, ensure_ascii=False), encoding='utf-8')
        sitemap = self.site/'sitemap.xml'
        text = re.sub(r'\s*<lastmod>.*?</lastmod>', '', sitemap.read_text(encoding='utf-8'))
        text = re.sub(rf'<loc>{re.escape(self.base)}/(.*?)</loc>', lambda m: f'<loc>{self.base}/{self.renamed.get(m[1], m[1])}</loc>', text)
        sitemap.write_text(text, encoding='utf-8')


def accessible(text):
    "Roles and names that smalldocs leaves out: icons are decoration, toggles are buttons, the switch and the copy button have names."
    text = re.sub(r'<i class="bi([^"]*)" role="img"></i>', r'<i class="bi\1" aria-hidden="true"></i>', text)
    text = re.sub(r'(<a class="(?:sidebar-item-text|sidebar-item-toggle)[^"]*"[^>]*?) role="navigation"', r'\1 role="button" tabindex="0"', text)
    text = text.replace('class="quarto-color-scheme-toggle nav-link"', 'class="quarto-color-scheme-toggle nav-link" role="button" aria-label="Toggle dark mode"')
    return text.replace('class="code-copy-button"', 'class="code-copy-button" aria-label="Copy to clipboard"')


def styles(site):
    "No web fonts, and of the icons only those that occur."
    for f in site.rglob('*.css'):
        text = f.read_text(encoding='utf-8')
        f.write_text(re.sub(r'@import *url\([^)]*\);?', '', text), encoding='utf-8')
    css = site/'site_libs/bootstrap-icons/bootstrap-icons.min.css'
    rules, used = css.read_text(encoding='utf-8'), {'sun', 'moon'}
    sources = [f.read_text(encoding='utf-8') for p in ('*.html', '*.js', '*.css') for f in site.rglob(p) if f!=css]
    used |= {n for t in sources for n in re.findall(r'\bbi-([\w-]+)', t)}
    codes = {int(c, 16) for t in sources for c in re.findall(r'content: *"\\([ef][0-9a-f]{3,4})"', t)}
    icons = dict(re.findall(r'\.bi-([\w-]+)::before\{content:"\\([0-9a-f]+)"\}', rules))
    keep = {n: c for n, c in icons.items() if n in used}
    rules = re.sub(r'\.bi-([\w-]+)::before\{content:"\\[0-9a-f]+"\}', lambda m: m[0] if m[1] in keep else '', rules)
    rules = re.sub(r'url\("[^"]*\.woff2(?:\?[^"]*)?"\) *format\("woff2"\), *', '', rules)
    css.write_text(rules, encoding='utf-8')
    cut_font(css.parent/'fonts/bootstrap-icons.woff2', css.parent/'fonts/bootstrap-icons.woff', codes | {int(c, 16) for c in keep.values()})


def cut_font(new, old, codes):
    "Keep the glyphs in use: read the uncompressed-by-zlib twin, which needs no Brotli, and write a small woff in its place."
    from fontTools import subset
    logging.getLogger('fontTools').setLevel(logging.ERROR)  # it remarks on two spare bytes in the font's table of names
    chosen = subset.Options(flavor='woff', notdef_outline=True, recalc_timestamp=False)
    font = subset.load_font(BytesIO(old.read_bytes()), chosen)
    cutter = subset.Subsetter(chosen)
    cutter.populate(unicodes=codes)
    cutter.subset(font)
    new.unlink()
    subset.save_font(font, str(old), chosen)


def finish(site, sources, base, repo):
    "Finish the site in the folder `site`; `sources` maps pages to their notebooks, `repo` says where those are hosted."
    Finisher(Path(site), sources, base, repo).write()
