"How the reference of a symbol looks on a page: its signature with shapes and units, then the methods of a class, each with its own anchor."
import ast
import importlib
import inspect
import re
import textwrap
from dataclasses import is_dataclass

from fastcore.docments import DocmentText
from nbdev import doclinks, showdoc
from nbdev.doclinks import NbdevLookup
from public_names import public_names

_MODULES = re.compile(r'\b(?:[a-z_]\w*\.)+(?=[A-Z]\w*)')  # jaxtyping.Float -> Float, matplotlib.axes._axes.Axes -> Axes


def own_methods(klass):
    "Documented public methods that a class defines itself, in source order."
    return [m for name, m in vars(klass).items() if inspect.isfunction(m) and not name.startswith('_') and m.__doc__]


class Written(str):
    "A default as it stands in the source, where its value would fill the page or hold an address."
    __repr__ = str.__str__


def written_defaults(o):
    "Source of each default of a function, a constructor or a dataclass; a field's factory as a call."
    code = o.__init__ if inspect.isclass(o) and not is_dataclass(o) else o
    tree = ast.parse(textwrap.dedent(inspect.getsource(code))).body[0]
    if is_dataclass(o): pairs = [(n.target.id, n.value) for n in tree.body if isinstance(n, ast.AnnAssign) and n.value]
    else:
        given = [*tree.args.posonlyargs, *tree.args.args]
        pairs = [*zip(given[len(given)-len(tree.args.defaults):], tree.args.defaults), *zip(tree.args.kwonlyargs, tree.args.kw_defaults)]
        pairs = [(a.arg, v) for a, v in pairs if v is not None]
    return {name: re.sub(r'^field\(default_factory=(.*)\)$', r'\1()', ast.unparse(v)) for name, v in pairs}


def signature(o, name):
    "The definition with its docments, as Python, without the modules of its types; a class without own constructor has no parameters."
    if inspect.isclass(o) and '__init__' not in vars(o): return f'class {name}'
    shown = DocmentText(o, docstring=False)
    for parameter, default in written_defaults(o).items(): shown.dm[parameter]['default'] = Written(default)
    text = _MODULES.sub('', str(shown))
    text = re.sub(r'^(async def|def) [\w.]+', lambda m: f"{'class' if inspect.isclass(o) else m[1]} {name}", text, count=1)
    return re.sub(r'\)(->None)?:$', ')', text) if inspect.isclass(o) else text.removesuffix(':')


def entry(o, name, level):
    "Markdown of one symbol: link to its source, heading, summary, signature."
    source = NbdevLookup().code(name)
    link = f'[source]({source}){{.source-link}}\n\n' if source and not source.endswith('None') else ''
    doc = inspect.getdoc(o) or ''
    return f"{'#'*level} {name} {{#{name.lower()} .reference}}\n\n{link}{doc}\n\n```python\n{signature(o, name)}\n```"


def packaged(o, name):
    "The package's own object instead of the copy that a page executed: only it still has the comments of its fields."
    found = NbdevLookup()[name]
    if not isinstance(found, tuple): return o
    return getattr(importlib.import_module(found[1].removesuffix('.py').replace('/', '.')), name, o)


class Renderer(showdoc.BasicMarkdownRenderer):
    "The renderer behind `show_doc` while the site is built."
    def __init__(self, sym, name=None, title_level=3, **options):
        super().__init__(sym, name=name, title_level=title_level, **options)
        if '.' not in self.nm: self.sym = packaged(self.sym, self.nm)

    def _repr_markdown_(self):
        if self.nm.startswith('_'): return ''
        parts = [entry(self.sym, self.nm, self.title_level)]
        if inspect.isclass(self.sym):
            parts += [entry(m, f'{self.nm}.{m.__name__}', self.title_level+1) for m in own_methods(self.sym)]
        return '\n\n'.join(parts)


def prefer_public():
    "A short name means the public function, where a module that comes earlier in the alphabet has a private one of that name."
    entries, symbols = doclinks._build_lookup_table(None, None, None)
    if 'sandwich_repro' not in entries: raise SystemExit('no index of symbols: run `make prepare`, and install the package (`make venv`)')
    known = {full: target for module in entries['sandwich_repro']['syms'].values() for full, target in module.items()}
    symbols.update({full.rpartition('.')[2]: known[full] for full in public_names() if full in known})


def install():
    "Use `Renderer` for every `show_doc` of this process, and public names in links."
    showdoc.BasicMarkdownRenderer = Renderer
    prefer_public()
