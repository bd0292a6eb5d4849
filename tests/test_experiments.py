"Runs side by side, interrupted runs, and results that repeat."
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from lightning.pytorch.callbacks import LambdaCallback
from processes import ROOT

from sandwich_repro import experiments
from sandwich_repro.claims import check_claims
from sandwich_repro.config import SCALES, RunSpec
from sandwich_repro.corpus import LMDataModule, spec_tokens
from sandwich_repro.encodings import make_encoding
from sandwich_repro.pool import side_by_side
from sandwich_repro.report import summary_rows, write_report
from sandwich_repro.results import load_result, load_results, provenance, result_path, save_result
from sandwich_repro.train import fit


@pytest.mark.parametrize('scale', SCALES)
def test_every_model_of_every_grid_can_be_made(scale):
    "The scale map gives each encoding options that it takes"
    for spec in experiments.grid_specs(['all'], SCALES[scale]):
        make_encoding(spec.encoding, spec.n_heads, spec.d_model, **spec.encoding_options)


def work_or_die(item, report):
    "What the processes of these tests do"
    report(.5)
    if item=='die': os._exit(7)
    if item=='value': raise ValueError('item=value is wrong: say something else')


def test_a_process_that_dies_stops_no_other():
    heard = []
    failed = side_by_side(work_or_die, ['die', 'fine', 'value'], 2, lambda *event: heard.append(event))
    assert failed=={0: 'the process ended with exit code 7', 2: 'item=value is wrong: say something else'}
    assert (1, 'done', None) in heard and (1, 'progress', .5) in heard


def count_interrupts(path, report):
    "Writes how Ctrl-C would end it, then how many of them came in half a second after the first"
    seen, usual = [], signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    path.write_text('ready')
    while not seen: time.sleep(.01)
    time.sleep(.5)
    path.with_suffix('.txt').write_text(f'{usual} {len(seen)}')
    raise KeyboardInterrupt


PARENT = '''
from pathlib import Path
from sandwich_repro.cli import _listen
from sandwich_repro.pool import side_by_side
from test_experiments import count_interrupts
if __name__=="__main__":
    _listen()
    side_by_side(count_interrupts, [Path("a"), Path("b")], 2)
'''


@pytest.mark.parametrize('how', ['Ctrl-C in a terminal', 'kill of a background job'])
def test_workers_are_interrupted_once(how, tmp_path):
    "A second interruption means: do not wait for the checkpoint"
    (tmp_path/'parent.py').write_text(PARENT)
    background = how.startswith('kill')
    process = subprocess.Popen([sys.executable, 'parent.py'], cwd=tmp_path, env=os.environ | dict(PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT/'tests')])), stderr=subprocess.DEVNULL,
                               start_new_session=True, preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if background else None)
    end = time.time()+60
    while not all((tmp_path/name).exists() for name in 'ab') and time.time()<end: time.sleep(.05)
    if background: process.send_signal(signal.SIGTERM)
    else: os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=60)
    assert [(tmp_path/f'{name}.txt').read_text() for name in 'ab']==['True 1']*2


def reproduce(folder):
    "The command in a process of its own, and of its own group, as in a terminal"
    code = 'from sandwich_repro.cli import main; main()'
    return subprocess.Popen([sys.executable, '-c', code, 'reproduce', 'short', '--scale', 'smoke', '--processes', '1', '--out', str(folder)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.parametrize('how', [signal.SIGINT, signal.SIGTERM])
def test_interrupt_keeps_what_is_finished_and_goes_on(how, tmp_path):
    process = reproduce(tmp_path)
    end = time.time()+120
    while not list(tmp_path.glob('smoke/*.json')) and time.time()<end: time.sleep(.05)
    first = list(tmp_path.glob('smoke/*.json'))
    before = [p.stat().st_mtime_ns for p in first]
    os.killpg(process.pid, how)
    _, err = process.communicate(timeout=120)  # which workers that live on would keep from ending
    assert process.returncode==130 and 'of 2 runs are finished' in err and err.endswith('stopped; what is finished is kept, and the same command makes the rest\n')
    assert not list(tmp_path.rglob('.*.part'))
    process = reproduce(tmp_path)
    out, err = process.communicate(timeout=180)
    assert process.returncode==0, err
    assert len(list(tmp_path.glob('smoke/*.json')))==2
    assert [p.stat().st_mtime_ns for p in first]==before, 'a finished run was made again'


def test_the_same_spec_gives_the_same_numbers(tmp_path):
    spec = SCALES['smoke'].spec('kerple_log')
    one, two = (experiments.run(spec, tmp_path/name, progress=False) for name in 'ab')
    np.testing.assert_array_equal(one.nll, two.nll)
    assert one.cumulative==two.cumulative and one.erf==two.erf
    other = experiments.run(replace(spec, seed=1), tmp_path/'a', progress=False)
    assert other.nll!=one.nll and len(load_results(tmp_path/'a'))==2


def committed_run(spec, folder):
    "A committed result; another Python has another standard library, and so another text."
    result = load_result(result_path(spec, folder))
    if spec_tokens(spec).facts['sha256']!=result.corpus['sha256']: pytest.skip(f"the results are of {result.corpus['version']}, whose text is not here")
    return result


def rounding(committed, otherwise):
    "How far numbers may lie from committed ones: not at all, as they are stored, on the machine's own kind; else by what other sums make of them."
    here = provenance()
    return 1e-5 if all(committed.provenance[k]==here[k] for k in ('torch', 'device')) else otherwise


@pytest.mark.parametrize('scale', [s for s in SCALES if s in ('quick', 'laptop') and (ROOT/'results'/s).exists()])
def test_training_again_begins_like_the_committed_run(scale, tmp_path):
    "Text, tokens, weights, batches, schedule and arithmetic are still those of the results"
    spec = next(s for n in (0, SCALES[scale].many_segments) if result_path(s := SCALES[scale].spec('sandwich', n_segments=n), ROOT/'results').exists())
    committed = committed_run(spec, ROOT/'results')
    step, loss = committed.training['loss']['train'][0]
    stop = LambdaCallback(on_train_batch_end=lambda trainer, *_: setattr(trainer, 'should_stop', trainer.global_step>=step))
    again = fit(spec.model_config, spec.train, LMDataModule.from_spec(spec), seed=spec.seed, folder=tmp_path, progress=False, callbacks=[stop])
    assert again.steps==step
    assert again.loss['train'][0]==pytest.approx([step, loss], abs=rounding(committed, 5e-3))


def test_a_whole_run_gives_the_committed_numbers(tmp_path):
    spec = SCALES['smoke'].spec('sandwich')
    committed, again = committed_run(spec, ROOT/'tests'/'committed'), experiments.run(spec, tmp_path, progress=False)
    allowed = rounding(committed, 1e-3)
    for kind in ('train', 'val'): np.testing.assert_allclose(again.training['loss'][kind], committed.training['loss'][kind], atol=allowed, rtol=0)
    for name in ('nll', 'cumulative', 'cumulative_spread'): np.testing.assert_allclose(getattr(again, name), getattr(committed, name), atol=allowed, rtol=0)
    for name in ('non_overlapping', 'sliding'): assert getattr(again, name)==pytest.approx(getattr(committed, name), rel=allowed)
    assert (again.documents, again.corpus)==(committed.documents, committed.corpus)
    assert abs(again.erf-committed.erf)<=(allowed>1e-5)


def test_measuring_more_does_not_train_again(tmp_path):
    spec = SCALES['smoke'].spec('sandwich')
    experiments.run(spec, tmp_path, progress=False)
    checkpoint, = (tmp_path/'smoke'/'checkpoints').glob('*/last.ckpt')
    before = checkpoint.stat().st_mtime_ns
    more = experiments.run(replace(spec, eval=replace(spec.eval, erf_len=48)), tmp_path, progress=False)
    assert len(more.cumulative)==47 and checkpoint.stat().st_mtime_ns==before


def test_own_text_that_changed_is_named(tmp_path):
    text = tmp_path/'mine.txt'
    text.write_text('\n'.join(f'line {i} of a long text;' for i in range(20000)))
    spec = replace(SCALES['smoke'].spec('none', corpus=str(text)), eval=replace(SCALES['smoke'].spec('none').eval, n_segments=4))
    experiments.run(spec, tmp_path, progress=False)
    text.write_text('\n'.join(f'line {i} of another text;' for i in range(20000)))
    with pytest.raises(ValueError, match='has changed since'): experiments.run(spec, tmp_path, progress=False)


def test_own_encoding_that_changed_is_named(tmp_path, monkeypatch):
    "Neither an old result nor old weights pass for those of an edited function"
    source = 'from sandwich_repro.position import FixedBias\ndef mine(n_heads, d_model): return FixedBias(lambda d: -{}*d.float().expand(n_heads, *d.shape))\n'
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path/'edited_bias.py').write_text(source.format('0.1'))
    spec = SCALES['smoke'].spec('edited_bias:mine')
    experiments.run(spec, tmp_path, progress=False)
    (tmp_path/'edited_bias.py').write_text(source.format('5.00'))
    monkeypatch.delitem(sys.modules, 'edited_bias')
    with pytest.raises(ValueError, match='the module of encoding edited_bias:mine has changed since'): experiments.run(spec, tmp_path, progress=False)
    with pytest.raises(ValueError, match='belongs to another run'): experiments.last_token(spec, tmp_path)
    monkeypatch.delitem(sys.modules, 'edited_bias')


def test_weights_that_are_missing_are_trained_again(tmp_path):
    "A result without its checkpoint, as in a clone, gets it from `train`; the result stays"
    spec = SCALES['smoke'].spec('alibi', shift=6)
    experiments.run(spec, tmp_path, progress=False)
    path, before = result_path(spec, tmp_path), result_path(spec, tmp_path).read_bytes()
    shutil.rmtree(tmp_path/'smoke'/'checkpoints')
    with pytest.raises(ValueError, match='weights of alibi Δ=6 .* train it first'): experiments.receptive_field(spec, tmp_path)
    experiments.run(spec, tmp_path, progress=False)
    assert not (tmp_path/'smoke'/'checkpoints').exists()
    experiments.run(spec, tmp_path, progress=False, weights=True)
    assert experiments.receptive_field(spec, tmp_path)[0]['ERF']==load_result(path).erf
    assert path.read_bytes()==before


def test_weights_that_are_half_trained_are_finished(tmp_path, monkeypatch):
    "`train` in a clone, stopped and started again"
    spec = SCALES['smoke'].spec('alibi')
    experiments.run(spec, tmp_path, progress=False)
    shutil.rmtree(tmp_path/'smoke'/'checkpoints')
    halfway = LambdaCallback(on_train_batch_end=lambda trainer, *_: setattr(trainer, 'should_stop', trainer.global_step>=10))
    kept = experiments.fit
    monkeypatch.setattr(experiments, 'fit', lambda *args, **more: kept(*args, **more, callbacks=[halfway]))
    try: experiments.run(spec, tmp_path, progress=False, weights=True)
    except ValueError: pass
    monkeypatch.setattr(experiments, 'fit', kept)
    with pytest.raises(ValueError, match='up to step'): experiments.receptive_field(spec, tmp_path)
    experiments.run(spec, tmp_path, progress=False, weights=True)
    assert experiments.receptive_field(spec, tmp_path)


def test_losses_that_are_not_finite_are_not_saved(tmp_path):
    result = experiments.run(SCALES['smoke'].spec('none'), tmp_path/'a', progress=False)
    with pytest.raises(ValueError, match='code-none.* is not saved: nll must hold one finite loss'): save_result(replace(result, nll=[[float('nan')]*len(row) for row in result.nll]), tmp_path/'b')
    path = result_path(result.spec, tmp_path/'a')
    content = json.loads(path.read_text())
    del content['provenance']
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match='provenance is missing'): load_result(path)


def test_runs_measured_otherwise_stand_beside_the_grid(tmp_path):
    "Other lengths, another ERF, no loss at L_tr: the folder can still be judged and reported, on the grid's own numbers"
    own = experiments.run(SCALES['smoke'].spec('alibi'), tmp_path, progress=False)
    columns = {n: i for i, n in enumerate(own.spec.eval.lengths)}
    for changes in (dict(lengths=(8, 16)), dict(lengths=(16, 32, 64)), dict(lengths=(32, 64)), dict(erf_len=40)):
        spec = replace(own.spec, eval=replace(own.spec.eval, **changes))
        keep = spec.eval.erf_len-1
        save_result(replace(own, spec=spec, nll=[[row[columns[n]] for n in spec.eval.lengths] for row in own.nll], cumulative=[*own.cumulative[:keep-1], 1.], cumulative_spread=own.cumulative_spread[:keep], erf=30), tmp_path)
    every = load_results(tmp_path/'smoke')
    assert len(every)==5
    write_report(every, 'smoke', tmp_path)
    assert summary_rows(every, 'smoke')==summary_rows([own], 'smoke')
    assert check_claims(every, 'smoke')==check_claims([own], 'smoke')


def test_divergence_is_recorded_and_reported(tmp_path):
    spec = SCALES['smoke'].spec('none')
    wild = replace(spec, train=replace(spec.train, lr=1e30, clip=1e30))
    result = experiments.run(wild, tmp_path, progress=False)
    assert result.diverged and result.training['status'].startswith('diverged at step')
    assert 'diverged at step' in summary_rows([result], 'smoke')[0]['seeds × N']


def my_encoding(n_heads, d_model, strength=1.0):
    "An encoding of the user's own: every step back costs the same in every head"
    from sandwich_repro.position import FixedBias
    return FixedBias(lambda distance: -strength*distance.float().expand(n_heads, *distance.shape))


def test_encoding_of_ones_own_in_a_spec(tmp_path):
    spec = RunSpec(**{**vars(SCALES['smoke'].spec('none')), 'encoding': f'{__name__}:my_encoding', 'encoding_options': {'strength': 3.0}, 'label': ''})
    result = experiments.run(spec, tmp_path, progress=False)
    assert result.erf<20 and 'my_encoding' in result.spec.label
