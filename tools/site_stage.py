"Rewrite processed notebooks into what smalldocs reads: numbers and captions of figures, tables and equations, and pictures as files."
import base64
import html
import json
import re
import shutil
import struct
from itertools import count, zip_longest
from pathlib import Path

import yaml

NAMES = dict(fig='Figure', tbl='Table', eq='Equation')
LABEL = re.compile(r'^#\| *label: *((?:fig|tbl)-[\w-]+)|\{#((?:fig|tbl|eq)-[\w-]+)', re.M)
REFERENCE = re.compile(r'(?<![\w`@])\[?@((?:fig|tbl|eq)-[\w-]*\w)\]?')
EQUATION = re.compile(r'\$\$(.+?)\$\$[ \t]*\{#(eq-[\w-]+)\}', re.S)
FENCE = re.compile(r'(^(?:```|~~~).*?^(?:```|~~~)[ \t]*$|`[^`\n]+`)', re.M|re.S)
_VALUE = r'[+−-]?(?:\d[\d,]*(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?'
NUMBER = re.compile(rf'\s*{_VALUE}(?:\s*[%×])?(?:\s*±\s*{_VALUE})?(?:\s*\({_VALUE}\s+to\s+{_VALUE}\))?\s*|NaN|nan|inf|[—–]|')
IMAGES = {'image/svg+xml': 'svg', 'image/png': 'png', 'image/jpeg': 'jpg'}


def text(x):
    "A notebook's string, which may be stored as lines."
    return x if isinstance(x, str) else ''.join(x)


def options(source):
    "The `#| key: value` lines of a code cell."
    out = {}
    for line in re.findall(r'^#\| *([\w-]+:.*)$', source, re.M):
        value = yaml.safe_load(line)
        if isinstance(value, dict): out.update(value)
    return out


def numbers(cells):
    "Number of each label of a page, counted by kind in reading order."
    counts, out = {}, {}
    for c in cells:
        for a, b in LABEL.findall(text(c['source'])):
            name = a or b
            if name in out: raise ValueError(f'the label {name} is used twice')
            kind = name.split('-')[0]
            counts[kind] = counts.get(kind, 0)+1
            out[name] = counts[kind]
    return out


def inline(caption):
    "A caption's Markdown as HTML: math, code, emphasis."
    out = html.escape(caption, quote=False)
    out = re.sub(r'\$(.+?)\$', r'<span class="math inline">\\(\1\\)</span>', out)
    out = re.sub(r'`(.+?)`', r'<code>\1</code>', out)
    return re.sub(r'(?<!\*)(\*\*?)(?!\*)(.+?)\1', lambda m: f'<strong>{m[2]}</strong>' if m[1]=='**' else f'<em>{m[2]}</em>', out)


def plain(caption):
    "A caption without markup, for an alternative text."
    return re.sub(r'[$`*@]', '', caption)


def png_size(data):
    "Width and height in the header of a PNG file."
    return struct.unpack('>II', data[16:24])


def aligned(table):
    "A data frame's columns of numbers, head included, marked for alignment to the right."
    rows = re.findall(r'<tr.*?</tr>', table.partition('</thead>')[2], re.S)
    columns = zip_longest(*(re.findall(r'<t[hd][^>]*>(.*?)</t[hd]>', row, re.S) for row in rows), fillvalue='')
    right = {i for i, cells in enumerate(columns) if all(map(NUMBER.fullmatch, cells)) and re.search(r'\d', ''.join(cells))}
    def row(m):
        column = count()
        return re.sub(r'<(t[hd])\b', lambda c: f'<{c[1]} class="number"' if next(column) in right else c[0], m[0])
    return re.sub(r'<tr.*?</tr>', row, table, flags=re.S)


class Page:
    "One notebook on its way to a page."
    def __init__(self, path, root, pictures):
        self.path, self.pictures, self.drawn = path, pictures, 0
        self.nb = json.loads(path.read_text(encoding='utf-8'))
        front = text(self.nb['cells'][0]['source'])
        output = re.search(r'^output-file: *(\S+)', front, re.M)
        self.src = path.relative_to(root).as_posix()
        self.out = (Path(self.src).parent/(output[1] if output else path.with_suffix('.html').name)).as_posix()
        self.labels = numbers(self.nb['cells'])
        said = [text(o.get('data', {}).get('text/markdown', '')) for c in self.nb['cells'] for o in c.get('outputs', [])]
        self.symbols = {name for s in said for name in re.findall(r'\{#([\w.]+) \.reference\}', s)}

    def prose(self, source):
        "References and equation numbers in the parts of a Markdown cell that are not code."
        parts = FENCE.split(source)
        parts[::2] = [REFERENCE.sub(self.reference, EQUATION.sub(self.equation, p)) for p in parts[::2]]
        return ''.join(parts)

    def heading(self, m):
        "A heading that would take the anchor of a symbol of its page gets another one."
        slug = re.sub(r'[^\w.-]', '', m[2].lower().replace(' ', '-'))
        return f'{m[0]} {{#about-{slug}}}' if slug in self.symbols and '{#' not in m[2] else m[0]

    def named(self, label):
        "What a label is called on its page: Figure 2."
        if label not in self.labels: raise ValueError(f'{self.src}: @{label} has no label on this page')
        return f"{NAMES[label.split('-')[0]]} {self.labels[label]}"

    def reference(self, m):
        "A link in place of `@fig-name`."
        return f'[{self.named(m[1])}](#{m[1]})'

    def titled(self, label, caption):
        "A caption as HTML, with its references, and its number in front."
        body = REFERENCE.sub(lambda m: f'<a href="#{m[1]}">{self.named(m[1])}</a>', inline(caption))
        return f'{self.named(label)}: {body}' if label in self.labels else body

    def equation(self, m):
        "A numbered equation in a box of its own."
        return f'\n\n::: {{.equation #{m[2]}}}\n\n$${m[1].strip()}$$\n\n[({self.labels[m[2]]})]{{.equation-number}}\n\n:::\n\n'

    def picture(self, data, meta, kind, opts, n):
        "Store a picture as a file and return its figure."
        label, caption, alt = (opts.get(k) for k in ('label', 'fig-cap', 'fig-alt'))
        caption, alt = (x[n] if isinstance(x, list) else x for x in (caption, alt))
        self.drawn += 1
        stem = label if label and n==0 else f'{label or "figure"}-{self.drawn}'
        name = f'{Path(self.out).stem}_files/{stem}.{IMAGES[kind]}'
        value = text(data[kind])
        raw = value.encode() if kind=='image/svg+xml' else base64.b64decode(value)
        self.pictures[(Path(self.out).parent/name).as_posix()] = raw
        size = meta.get(kind, {})
        if kind=='image/png' and 'width' not in size: size = dict(zip(('width', 'height'), png_size(raw)))
        shape = ''.join(f' {k}="{size[k]}"' for k in ('width', 'height') if k in size)
        alt = html.escape(alt or plain(caption or ''))
        image = f'<img src="{name}"{shape} alt="{alt}" class="figure-img" loading="lazy">' if alt else f'<img src="{name}"{shape} class="figure-img">'
        below = self.titled(label if n==0 else '', caption) if caption else ''
        return f'<figure class="figure">{image}{f"<figcaption>{below}</figcaption>" if below else ""}</figure>'

    def table(self, value, opts):
        "A table in a box that scrolls, with its caption and number."
        above = self.titled(str(opts.get('label', '')), opts['tbl-cap']) if opts.get('tbl-cap') else ''
        if above: value = re.sub(r'(<table\b[^>]*>)', lambda m: f'{m[1]}<caption>{above}</caption>', value, count=1)
        return '<div class="sd-table">'+aligned(value.replace('<table border="1" ', '<table '))+'</div>'

    def output(self, out, opts, n):
        "One stored output; whether it was a picture."
        data = out.get('data', {})
        kind = next((k for k in IMAGES if k in data), None)
        if kind and 'text/html' not in data:
            out['data'] = {'text/html': self.picture(data, out.get('metadata', {}), kind, opts, n)}
            return True
        if 'text/html' in data and '<table' in text(data['text/html']):
            out['data'] = {'text/html': self.table(text(data['text/html']), opts)}
        elif 'text/markdown' in data:
            value = self.prose(text(data['text/markdown']))
            if opts.get('tbl-cap'): value += f"\n\n: {self.numbered(opts)}\n"
            out['data'] = {'text/markdown': value}
        return False

    def numbered(self, opts):
        "The caption of a Markdown table, numbered, still Markdown."
        label = str(opts.get('label', ''))
        return self.prose((f'{self.named(label)}: ' if label in self.labels else '')+opts['tbl-cap'])

    def cell(self, c, modules):
        "Rewrite one cell in place."
        source = text(c['source'])
        if c['cell_type']=='markdown':
            needs = re.sub(r'^\*\*Needs.*', lambda m: re.sub(r'(?<!\[)`(\w+)`', modules, m[0]), source, flags=re.M)
            c['source'] = re.sub(r'^(#+) +(.+?) *$', self.heading, self.prose(needs), flags=re.M)
        elif c['cell_type']=='code':
            opts, n = options(source), 0
            for out in c.get('outputs', []): n += self.output(out, opts, n)
            c['source'] = re.sub(r'^#\| *(?:fig-cap|fig-alt|tbl-cap):.*\n?', '', source, flags=re.M)

    def stage(self, files):
        "Rewrite all cells and save; `files` are the notebooks of the modules, which a page's needs link to."
        modules = lambda m: f'[`{m[1]}`]({files[m[1]]})' if m[1] in files else m[0]  # noqa: E731
        for c in self.nb['cells']: self.cell(c, modules)
        self.path.write_text(json.dumps(self.nb), encoding='utf-8')


def stage(proc, dst):
    "Copy processed notebooks to `dst`, ready for smalldocs; return the pages and the pictures of the site, by path."
    shutil.copytree(proc, dst, ignore=shutil.ignore_patterns('_docs', '.quarto', '*.bak'))
    pictures = {}
    pages = [Page(path, dst, pictures) for path in sorted(dst.rglob('*.ipynb'))]
    files = {Path(p.out).stem: f'/{p.src}' for p in pages}
    for page in pages: page.stage(files)
    return pages, pictures
