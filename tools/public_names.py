"List the public names of the package, one a line; run as a script, write them to tests/public_names.txt."
import importlib
import pkgutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT/'tests'/'public_names.txt'


def public_names(package='sandwich_repro'):
    "`module.name` for every name in the `__all__` of the package and of its modules, sorted."
    root = importlib.import_module(package)
    modules = [root]+[importlib.import_module(f'{package}.{m.name}') for m in pkgutil.iter_modules(root.__path__) if not m.name.startswith('_')]
    return sorted(f'{m.__name__}.{name}' for m in modules for name in getattr(m, '__all__', ()))


if __name__=='__main__':
    sys.path.insert(0, str(ROOT))
    FILE.write_text('\n'.join(public_names())+'\n', encoding='utf-8')
    print(f'wrote {FILE.name}')
