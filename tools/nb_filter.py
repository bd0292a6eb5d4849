"The ipynb filter of a plain `quarto render` (nbs/_metadata.yml): nbdev's directives and our reference, cell by cell from stdin to stdout."
import os
import sys
from contextlib import redirect_stdout
from json import loads
from pathlib import Path

os.environ['IN_TEST'] = '1'
sys.path[:0] = [str(Path(__file__).parents[1])]
from execnb.nbio import dict2nb, nb2str, read_nb  # noqa: E402
from nbdev.processors import FilterDefaults  # noqa: E402
from site_reference import install  # noqa: E402

nb = dict2nb(loads(sys.stdin.read()))
ids = [c.get('id') for c in nb.cells]  # the name of the file is not given, only its folder
nb.path_ = next((f for f in sorted(Path().glob('*.ipynb')) if [c.get('id') for c in read_nb(f).cells]==ids), Path('notebook.ipynb'))
install()
with redirect_stdout(sys.stderr): FilterDefaults()(nb)
print(nb2str(nb))
