"Benchmarks in smoke mode: they run, and the compiled engine's script needs nothing but torch."
import re
import subprocess
import sys

import pytest
from processes import ROOT, run


@pytest.mark.parametrize('script', ['gpu', 'attention', 'last_token', 'training'])
def test_benchmarks_run(script):
    code, out = run([sys.executable, ROOT/'bench'/f'{script}.py', '--smoke'], 200)
    assert code==0 and 'Traceback' not in out, out
    rows = re.findall(r'^\| (.+) \| (\S+?)×? \| .* \|$', out, re.M)[1:]
    assert len(rows) >= 2, out
    for what, value in rows:
        if 'largest error' in what: assert float(value) <= 2, what


def test_the_package_runs_where_annotations_have_no_package():
    code = '''
import importlib.util, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name=='jaxtyping' else real(name, *a)
import plain_python, torch, sandwich_repro
assert not hasattr(sys.modules['jaxtyping'], '__path__')
q = torch.randn(1, 2, 5, 8)
print(sandwich_repro.biased_attention(q, q, q, sandwich_repro.make_encoding('sandwich', 2, 16)).shape)
'''
    out = subprocess.run([sys.executable, '-c', code], cwd=ROOT/'bench', capture_output=True, text=True, timeout=100)
    assert out.returncode==0, out.stderr
