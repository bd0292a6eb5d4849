"Scripts for other machines in smoke mode: they run, and those for a GPU need little beside torch."
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from processes import ROOT, run

from sandwich_repro.config import SCALES


@pytest.mark.parametrize('script', ['gpu', 'attention', 'last_token', 'training'])
def test_benchmarks_run(script):
    code, out = run([sys.executable, ROOT/'bench'/f'{script}.py', '--smoke'], 200)
    assert code==0 and 'Traceback' not in out, out
    rows = re.findall(r'^\| (.+) \| (\S+?)×? \| .* \|$', out, re.M)[1:]
    assert len(rows) >= 2, out
    for what, value in rows:
        if 'largest error' in what: assert float(value) <= (1e-5 if 'float32' in what else 2), what


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


WITHOUT = '''
import runpy, sys
class Hiding:
    "A finder that does not find some packages."
    def __init__(self, finder): self.finder = finder
    def __getattr__(self, name): return getattr(self.finder, name)
    def find_spec(self, name, *rest):
        hidden = name.partition(".")[0] in ("datasets", "fastcore", "jaxtyping", "jsonargparse", "nbdev", "pandas", "typer")
        return None if hidden else self.finder.find_spec(name, *rest)
sys.meta_path[:] = map(Hiding, sys.meta_path)
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
'''


def gpu_script(*options): return run([sys.executable, '-c', WITHOUT, ROOT/'tools'/'gpu.py', *options], 200)


def test_the_runs_on_a_gpu_need_little_beside_torch_and_are_made_once(tmp_path):
    "From nothing to the tables; what was finished before is not made again."
    code, out = gpu_script('--smoke', '--out', tmp_path)
    assert code==0 and 'Traceback' not in out and '4 of 4 runs finished' in out, out
    assert '4 of 4 runs to do on code' in out and re.search(r'^sandwich +code +16 +1 × 24 +\d', out, re.M), out
    files = {p: p.stat().st_mtime_ns for p in (tmp_path/'smoke').glob('*.json')}
    assert sorted(p.name.split('-')[1] for p in files)==['rotary', 'sandwich', 't5', 'window_window_480']
    code, out = gpu_script('--smoke', '--out', tmp_path)
    assert code==0 and '0 of 4 runs to do' in out and 'done in' not in out, out
    assert files=={p: p.stat().st_mtime_ns for p in (tmp_path/'smoke').glob('*.json')}


def test_without_a_gpu_the_runs_say_so_in_one_line(monkeypatch):
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    code, out = gpu_script()
    assert code==2 and out.startswith('no GPU here') and out.count('\n')==1, out


def test_an_interrupted_run_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    "An interrupt in a training leaves a checkpoint, from which the next call goes on, and no result."
    monkeypatch.syspath_prepend(ROOT/'tools')
    import gpu
    monkeypatch.setattr(gpu.Progress, '__call__', lambda self, share: os.kill(os.getpid(), signal.SIGINT))
    spec = SCALES['smoke'].spec('none', corpus='code')
    spec, steps = replace(spec, train=replace(spec.train, steps=1000)), []
    assert gpu.work([spec], tmp_path, False, 0)==[] and not list(tmp_path.iterdir())  # no time, no run
    for _ in range(2):
        assert gpu.work([spec], tmp_path, False, 10**4)==[]
        checkpoint, = tmp_path.rglob('last.ckpt')
        steps.append(torch.load(checkpoint, weights_only=True)['global_step'])
    assert 0<steps[0]<steps[1]<1000 and not list(tmp_path.rglob('*.json'))


def test_time_that_is_over_interrupts(monkeypatch):
    monkeypatch.syspath_prepend(ROOT/'tools')
    import gpu
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        with gpu.stopped_after(.1): time.sleep(20)
    with gpu.stopped_after(.1): pass
    time.sleep(.3)
    assert signal.getsignal(signal.SIGINT)==before


def test_what_fails_is_tried_in_a_slower_way(tmp_path, monkeypatch):
    "Compiled blocks, then compiled attention alone, then neither; a training that was finished is not made again."
    monkeypatch.syspath_prepend(ROOT/'tools')
    import gpu

    from sandwich_repro import engines, experiments
    monkeypatch.setattr(engines, '_failed', set())
    asked, spec, measure, fit = [], SCALES['smoke'].spec('none', corpus='code'), experiments.measure, experiments.fit
    def fits(*args, compile, **kwargs):
        asked.append(('fit', compile, *engines._failed))
        if compile: raise RuntimeError('no compiler')
        return fit(*args, compile=False, **kwargs)
    def measures(*args):
        if engines._failed: return measure(*args)
        raise RuntimeError('no backward pass')
    monkeypatch.setattr(experiments, 'fit', fits)
    monkeypatch.setattr(experiments, 'measure', measures)
    monkeypatch.setattr(gpu, 'learns', lambda *_: True)
    steps = []
    monkeypatch.setattr(gpu.Progress, '__call__', lambda self, share: steps.append(share))
    result = gpu.attempt(spec, tmp_path, True)
    assert asked==[('fit', True), ('fit', False), ('fit', False, 'cuda')] and len(result.nll)==spec.eval.n_segments
    assert steps==sorted(steps) and sum(s<.7 for s in steps)<=spec.train.steps    # trained once
    with pytest.raises(ValueError, match='100000000 segments'): gpu.attempt(replace(spec, eval=replace(spec.eval, n_segments=10**8)), tmp_path, True)
    assert len(asked)==3                                                    # bad input is not tried twice


def test_a_compiler_that_drops_a_gradient_is_found_out(monkeypatch):
    monkeypatch.syspath_prepend(ROOT/'tools')
    import gpu
    def dropping(model):
        def call(tokens):
            model.encodings.requires_grad_(False)
            return model(tokens)
        return call
    def traced(model):
        for block in model.blocks: block.compile(backend='aot_eager')
        return model
    scale = SCALES['smoke']
    assert gpu.learns(scale.spec('alibi'), None, 'cpu')
    for name in ('kerple_log', 't5'):
        torch.manual_seed(0)
        assert gpu.learns(scale.spec(name), traced, 'cpu')
        assert not gpu.learns(scale.spec(name), dropping, 'cpu')
