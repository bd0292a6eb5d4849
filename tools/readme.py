"Write README.md from nbs/index.ipynb, as `nbdev_readme` does, without Quarto: prose, code, stored outputs, pictures in README_files/."
import base64
import os
import posixpath
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
os.chdir(ROOT)
sys.path[:0] = [str(ROOT)]
from execnb.nbio import read_nb  # noqa: E402
from fastcore.script import call_parse  # noqa: E402
from nbdev.config import get_config  # noqa: E402
from nbdev.doclinks import _nbpath2html  # noqa: E402
from nbdev.processors import FilterDefaults  # noqa: E402
from site_reference import install  # noqa: E402
from site_stage import EQUATION, IMAGES, NAMES, REFERENCE, numbers, options, plain, text  # noqa: E402

LINK = re.compile(r'\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)]*)?\)')
CALLOUT = re.compile(r'^::: *\{\.callout-\w+[^}]*\}\n(.*?)^:::[ \t]*$', re.M|re.S)


def processed(path):
    "A notebook after nbdev's directives."
    nb = read_nb(path)
    nb.path_ = Path(path)
    FilterDefaults()(nb)
    return nb


class Readme:
    "GitHub's Markdown of a processed notebook, and the pictures it shows."
    def __init__(self, nb, site):
        self.site, self.labels, self.pictures = site, numbers(nb['cells']), {}
        front = options('\n'.join(f'#| {line}' for line in text(nb['cells'][0]['source']).splitlines()))
        parts = [f"# {front['title']}", f"> {front['description']}"] if 'title' in front else []
        for c in nb['cells'][1:]: parts += self.cell(c)
        self.markdown = '\n\n'.join(p for p in parts if p.strip())+'\n'

    def named(self, m): return f"{NAMES[m[1].split('-')[0]]} {self.labels[m[1]]}"

    def link(self, m):
        "A page of the site in place of a notebook; other files stay relative to the top."
        target = m[1]
        if target.endswith('.ipynb'): target = f'{self.site}/{_nbpath2html(Path(target)).as_posix()}'
        else: target = posixpath.normpath(posixpath.join('nbs', target))
        return f"]({target}{m[2] or ''})"

    def prose(self, source):
        source = CALLOUT.sub(lambda m: re.sub(r'^', '> ', m[1].strip(), flags=re.M), source)
        source = EQUATION.sub(lambda m: f'$${m[1].rstrip()} \\tag{{{self.labels[m[2]]}}}$$', source)
        source = re.sub(r'^<!--.*?-->$', '', source, flags=re.M)
        return LINK.sub(self.link, REFERENCE.sub(self.named, source)).strip()

    def cell(self, c):
        source, opts = text(c['source']), {}
        if c['cell_type']=='markdown': return [self.prose(source)]
        if c['cell_type']!='code' or not source.strip(): return []
        opts = options(source)
        code = re.sub(r'^#\|.*\n?', '', source, flags=re.M).strip()
        return [f'```python\n{code}\n```' if code and opts.get('echo', True) else '', *(self.output(o, opts) for o in c.get('outputs', []))]

    def output(self, out, opts):
        data = out.get('data', {})
        kind = next((k for k in IMAGES if k in data), None)
        if kind: return self.picture(text(data[kind]), kind, opts, out.get('metadata', {}).get(kind, {}))
        if 'text/markdown' in data: return self.prose(text(data['text/markdown']))
        if '<table' in text(data.get('text/html', '')): return re.sub(r'<style.*?</style>|\n\s*\n', '', text(data['text/html']), flags=re.S)
        said = text(data.get('text/plain', out.get('text', ''))).rstrip()
        return f'```\n{said}\n```' if said else ''

    def picture(self, value, kind, opts, size):
        name = f"README_files/{opts.get('label', f'figure-{len(self.pictures)+1}')}.{IMAGES[kind]}"
        self.pictures[name] = value.encode() if kind=='image/svg+xml' else base64.b64decode(value)
        caption = plain(opts.get('fig-cap', ''))
        width = f' width="{size["width"]}"' if 'width' in size else ''
        image = f'<img src="{name}" alt="{opts.get("fig-alt", caption)}"{width}>'
        return f'{image}\n\n*{caption}*' if caption else image


def current():
    "The README as the index says it now."
    install()
    cfg = get_config()
    return Readme(processed(cfg.nbs_path/cfg.readme_nb), f'{cfg.doc_host}{cfg.doc_baseurl}')


@call_parse
def main():
    "Write README.md and README_files/"
    readme = current()
    shutil.rmtree(ROOT/'README_files', ignore_errors=True)
    for name, raw in readme.pictures.items():
        (ROOT/name).parent.mkdir(exist_ok=True)
        (ROOT/name).write_bytes(raw)
    (ROOT/'README.md').write_text(readme.markdown, encoding='utf-8')
    print(f'wrote README.md and {len(readme.pictures)} pictures')
