"The command line: every kind of bad input is one line and status 2, and the commands work on a run of scale smoke."
import json
import os
import warnings
from pathlib import Path

import pytest
import torch

from sandwich_repro import experiments
from sandwich_repro.config import SCALES
from sandwich_repro.results import result_path


BAD = {
    'encoding': (['train', '--encoding', 'alibbi'], 'did you mean alibi'),
    'corpus': (['train', '--corpus', 'cod'], 'code'),
    'scale': (['train', '--scale', 'quikc'], 'did you mean quick'),
    'grid': (['reproduce', 'tabel1'], 'did you mean table1'),
    'option': (['train', '--encoding', 'alibi', '--option', 'shft=6'], 'did you mean shift'),
    'form of an option': (['train', '--encoding', 'alibi', '--option', 'shift'], 'name=value'),
    'window missing': (['train', '--encoding', 'window'], 'window'),
    'window 0': (['train', '--encoding', 'window', '--option', 'window=0'], 'window=0'),
    'window below 0': (['train', '--encoding', 'window', '--option', 'window=-40'], 'window=-40'),
    'd_bar odd': (['train', '--option', 'd_bar=7'], 'd_bar=7'),
    'd_bar 0': (['train', '--option', 'd_bar=0'], 'd_bar=0'),
    'shift nan': (['train', '--encoding', 'alibi', '--option', 'shift=nan'], 'nan'),
    'h infinite': (['train', '--encoding', 'alibi', '--option', 'same_h=inf'], 'inf'),
    'shift without slopes': (['train', '--encoding', 'alibi', '--option', 'shift=1000'], 'alibi Δ=1000: shift=997'),
    'shift a word': (['train', '--encoding', 'alibi', '--option', 'shift=much'], 'much'),
    'heads': (['train', '--n-heads', 5], 'd_model=64 is not divisible by n_heads=5'),
    'odd rotary width': (['train', '--encoding', 'rotary', '--option', 'rotary_dim=3'], '3'),
    'lengths unsorted': (['train', '--lengths', '64,32'], 'rising order'),
    'length 1': (['train', '--lengths', '1,64'], 'at least 2'),
    'lengths not numbers': (['train', '--lengths', '64,x'], "lengths='64,x'"),
    'lengths longer than any document': (['train', '--scale', 'smoke', '--lengths', '16,100000000'], 'longer than any held-out document'),
    'N too large': (['train', '--scale', 'smoke', '--n-segments', 10**9], 'more than there are'),
    'vocabulary too small': (['train', '--scale', 'smoke', '--vocab-size', 100], 'vocab'),
    'not trained': (['perplexity', '--scale', 'smoke'], 'train it first'),
    'threshold': (['erf', '--scale', 'smoke', '--threshold', 2], 'threshold=2'),
    'no results, claims': (['claims'], 'sandwich-repro reproduce --scale quick'),
    'no results, report': (['report'], 'sandwich-repro reproduce --scale quick'),
    'processes': (['reproduce', '--processes', '-1'], 'processes=-1'),
    'no seed': (['reproduce', '--seeds', '0'], 'seeds=0'),
    'seed too large': (['train', '--seed', 2**33], 'seed=8589934592'),
    'window not whole': (['train', '--encoding', 'window', '--option', 'window=80.5'], 'window=80.5'),
    'shard not a digit': (['reproduce', '--shard', '²/2'], 'i/n'),
    'shard': (['reproduce', '--shard', '0/2'], "shard='0/2'"),
    'steps': (['train', '--steps', 0], 'steps=0'),
    'learning rate': (['train', '--lr', 'nan'], 'lr=nan'),
    'warm-up above 1': (['train', '--warmup', 2], 'warmup=2.0'),
    'final rate above 1': (['train', '--final-lr', 1.5], 'final_lr=1.5'),
    'share above 1': (['train', '--val-check-interval', 2.5], 'val_check_interval=2.5 is a share above 1'),
    'pairs of channels': (['train', '--encoding', 'rotary', '--option', 'interleaved=yes'], "interleaved='yes' must be True or False"),
    'option of the model': (['train', '--option', 'n_heads=3'], 'n_heads cannot be an option'),
    'option of the run': (['train', '--option', 'train_len=32'], '--train-len'),
    'option given twice': (['train', '--encoding', 'alibi', '--option', 'shift=6', '--option', 'shift=7'], 'shift is given twice'),
    'lengths without L_tr': (['train', '--scale', 'smoke', '--lengths', '32,64'], 'must hold L_tr=16'),
    'more steps than a machine counts': (['train', '--steps', 10**20], 'below 2³¹'),
    'more windows than a machine holds': (['train', '--batch-size', 10**12], 'below 2³¹'),
    'one for all layers': (['train', '--encoding', 'kerple_log', '--option', 'shared=x'], "shared='x' must be True or False"),
}

@pytest.mark.parametrize('name', BAD)
def test_bad_input(name, call, tmp_path):
    words, message = BAD[name]
    code, _, err = call(*words, '--out', tmp_path)
    assert code==2 and message in err
    assert len(err.splitlines())==1 and 'Traceback' not in err
    assert not list(tmp_path.rglob('*.json'))


@pytest.mark.parametrize('content, message', [(b'', 'empty'), (b'\xff\xfe\xff', 'UTF-8')])
def test_bad_corpus_file(content, message, call, tmp_path):
    (tmp_path/'mine.txt').write_bytes(content)
    code, _, err = call('train', '--scale', 'smoke', '--corpus', tmp_path/'mine.txt', '--out', tmp_path/'out')
    assert code==2 and message in err and len(err.splitlines())==1


def test_folder_not_writable(call, tmp_path):
    (tmp_path/'file').write_text('')
    for words in (['train', '--scale', 'smoke'], ['reproduce', '--scale', 'smoke']):
        code, _, err = call(*words, '--out', tmp_path/'file')
        assert code==2 and 'choose another output folder' in err


def test_click_errors_are_status_2(call):
    for words, message in ((['train', '--encodng', 'alibi'], '--encoding'), (['train', '--n-heads', 'x'], '--n-heads x'), (['trian'], 'train')):
        code, _, err = call(*words)
        assert code==2 and message in err and len(err.splitlines())==1
    assert call()[0]==2


def test_one_model_from_training_to_report(call, tmp_path):
    "train, perplexity, erf, claims and report on one run; a newer results file is named"
    common = ['--scale', 'smoke', '--encoding', 'alibi', '--option', 'shift=-3', '--out', tmp_path]
    code, out, _ = call('train', *common)
    spec = SCALES['smoke'].spec('alibi', shift=-3)
    path = result_path(spec, tmp_path)
    assert code==0 and path.exists() and path.name in out.replace('\n', '')
    code, out, _ = call('perplexity', *common, '--lengths', '16,64', '--n-segments', 8)
    assert code==0 and ' 64 ' in out
    code, out, _ = call('erf', *common)
    assert code==0 and str(json.loads(path.read_text())['erf']) in out
    code, out, _ = call('claims', '--scale', 'smoke', '--out', tmp_path)
    assert code==0 and 'C26' in out and 'held' in out
    code, out, _ = call('report', '--scale', 'smoke', '--out', tmp_path)
    assert code==0 and (tmp_path/'smoke'/'report.html').exists()
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 2'))
    code, _, err = call('claims', '--scale', 'smoke', '--out', tmp_path)
    assert code==2 and path.name in err and 'update sandwich_repro' in err


def test_a_run_with_other_settings_is_not_taken_for_the_scales_own(call, tmp_path):
    from sandwich_repro.evidence import Missing, evidence_for
    from sandwich_repro.results import load_results
    for more in ((), ('--steps', 31), ('--n-segments', 20), ('--train-len', 32)): assert call('train', '--scale', 'smoke', '--out', tmp_path, *more)[0]==0
    results = load_results(tmp_path/'smoke')
    assert sorted(r.spec.label for r in results)==['sandwich', 'sandwich', 'sandwich', 'sandwich (steps=31)']
    evidence = evidence_for(results, 'smoke')
    assert [(r.spec.train.steps, r.spec.eval.n_segments) for r in evidence.runs('sandwich')]==[(30, 20)]
    assert evidence.runs('sandwich', train_len=32)
    with pytest.raises(Missing): evidence_for([r for r in results if r.spec.train.steps==31], 'smoke').runs('sandwich (steps=31)')
    call('report', '--scale', 'smoke', '--out', tmp_path)
    assert 'sandwich (steps=31)' in (tmp_path/'smoke'/'report.html').read_text(encoding='utf-8')


def test_dry_run_trains_nothing(call, tmp_path):
    code, out, _ = call('reproduce', 'table3', '--scale', 'smoke', '--dry-run', '--out', tmp_path)
    assert code==0 and '30 of 30 runs to do' in out and 'minutes' in out
    assert not list(tmp_path.rglob('*'))


def test_corpora_lists_what_there_is(call):
    code, out, _ = call('corpora')
    assert code==0 and all(name in out for name in ('code', 'math', 'prose', 'pile-arxiv'))


@pytest.mark.parametrize('command', ['reproduce', 'train', 'perplexity', 'erf', 'claims', 'report', 'lens', 'corpora'])
def test_help(command, call):
    code, out, _ = call(command, '--help')
    assert code==0 and 'Usage' in out


def test_measuring_reads_and_writes_nothing(call, tmp_path, monkeypatch):
    "A finished model can be measured in a folder that nobody may write to; one that diverged or was stopped says so"
    common = ['--scale', 'smoke', '--encoding', 'none', '--out', tmp_path]
    assert call('train', *common)[0]==0
    last, = tmp_path.rglob('last.ckpt')
    before = sorted(tmp_path.rglob('*'))
    def refuse(allowed):
        def checked(path, *args, **more):
            if tmp_path in (path, *path.parents): raise PermissionError(13, 'Permission denied', str(path))
            return allowed(path, *args, **more)
        return checked
    for name in ('touch', 'mkdir'): monkeypatch.setattr(type(tmp_path), name, refuse(getattr(type(tmp_path), name)))
    for words in (['perplexity', '--lengths', '16,64', '--n-segments', 8], ['erf']): assert call(*words, *common)[0]==0
    assert sorted(tmp_path.rglob('*'))==before
    content = torch.load(last)
    content['callbacks']['sandwich_repro']['record']['step'] = 12
    torch.save(content, last)
    assert 'is trained up to step 12 of 30' in call('erf', *common)[2]
    content['callbacks']['sandwich_repro']['record']['diverged_at'] = 13
    torch.save(content, last.with_name('diverged.ckpt'))
    last.unlink()
    for command in ('perplexity', 'erf'):
        code, _, err = call(command, *common)
        assert code==2 and 'diverged at step 13' in err and len(err.splitlines())==1


def forbidden(monkeypatch, folder):
    "A folder of mode 000, for a superuser too"
    access, stat = os.access, os.stat
    def refuse(path, *args, **more):
        if folder in Path(os.fspath(path)).parents: raise PermissionError(13, 'Permission denied', os.fspath(path))
        return stat(path, *args, **more)
    monkeypatch.setattr(os, 'access', lambda path, mode, **more: Path(path)!=folder and access(path, mode, **more))
    monkeypatch.setattr(os, 'stat', refuse)


@pytest.mark.parametrize('below', ['', 'results'])
@pytest.mark.parametrize('words', [['reproduce', 'short'], ['reproduce', 'short', '--dry-run'], ['train'], ['claims'], ['report'], ['perplexity']], ids=' '.join)
def test_folder_that_may_not_be_looked_into(words, below, call, tmp_path, monkeypatch):
    forbidden(monkeypatch, tmp_path)
    code, _, err = call(*words, '--scale', 'smoke', '--out', tmp_path/below)
    assert code==2 and str(tmp_path) in err and len(err.splitlines())==1


def test_a_grid_without_a_fixed_bias_says_nothing_but_its_results(call, tmp_path, monkeypatch):
    "`reproduce short` has no bias to draw and two runs to count; neither is worth a warning"
    def in_this_process(work, items, processes, hear):
        for i, item in enumerate(items):
            hear(i, 'started', None)
            work(item, lambda share, i=i: hear(i, 'progress', share))
            hear(i, 'done', None)
        return {}
    monkeypatch.setattr(experiments, 'side_by_side', in_this_process)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        code, out, err = call('reproduce', 'short', '--scale', 'smoke', '--out', tmp_path)
    assert code==0 and 'report:' in out and 'arning' not in err
