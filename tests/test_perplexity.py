"The three protocols against values worked out by hand, with models whose losses are known, and with real Hugging Face models."
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from sandwich_repro.interface import max_positions
from sandwich_repro.perplexity import (
    last_token_nll, last_token_perplexity, non_overlapping_perplexity, paired_difference, sliding_window_nll, sliding_window_perplexity)


class Counting:
    "Logits from how many tokens stand before the next one; remembers what it was given. Token 1 costs `loss(context)` nats, of two."
    def __init__(self, loss): self.loss, self.seen = loss, []

    def __call__(self, tokens):
        self.seen.append(tokens.clone())
        p = torch.tensor([math.exp(-self.loss(k)) for k in range(1, tokens.shape[1]+1)]).double()
        return torch.stack([1-p, p], -1).log().expand(len(tokens), -1, -1)


class Bigram(nn.Module):
    "A random causal model: an average over the past decides the next token."
    def __init__(self, vocab=11, width=6):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out, self.dropout = nn.Embedding(vocab, width), nn.Linear(width, vocab), nn.Dropout(.5)

    def get_input_embeddings(self): return self.table

    def forward(self, tokens):
        x = self.table(tokens).cumsum(1)/torch.arange(1, tokens.shape[1]+1)[:, None]**.5
        return self.out(self.dropout(x))


def ones(n): return torch.ones(n, dtype=torch.long)


@pytest.mark.parametrize('batch_size', [1, 4, 200])
def test_losses_are_pooled_over_tokens(batch_size):
    "100 tokens of nll 2 and 10 of nll 4: the mean loss counts tokens, in any order and batch."
    table = torch.tensor([[math.exp(-2), 1-math.exp(-2)], [1-math.exp(-4), math.exp(-4)]]).log()
    model, texts = lambda tokens: table[tokens], [0*ones(101), ones(11)]
    for order in (texts, texts[::-1]):
        got = non_overlapping_perplexity(model, order, 8, batch_size=batch_size)
        assert got==pytest.approx(8.862405, abs=1e-6)


def test_results_do_not_depend_on_the_batch():
    model, text = Bigram(), torch.randint(11, (173,), generator=torch.Generator().manual_seed(0))
    segments = text[:160].view(10, 16)
    nll = last_token_nll(model, segments, [2, 5, 16])
    for batch_size in (1, 3, 10): assert_close(last_token_nll(model, segments, [2, 5, 16], batch_size), nll, rtol=0, atol=1e-6)
    order = torch.randperm(10)
    assert_close(last_token_nll(model, segments[order], [2, 5, 16]), nll[order], rtol=0, atol=1e-6)
    for window, stride in [(16, 16), (16, 5), (9, 1)]:
        want = sliding_window_perplexity(model, text, window, stride)
        for batch_size in (1, 7): assert sliding_window_perplexity(model, text, window, stride, batch_size=batch_size)==pytest.approx(want, rel=1e-6)


def test_last_token_by_a_slow_loop():
    model = Bigram().eval()
    segments = torch.randint(11, (5, 12), generator=torch.Generator().manual_seed(1))
    nll = last_token_nll(model, segments, [2, 7, 12])
    for i, row in enumerate(segments):
        for j, length in enumerate([2, 7, 12]):
            logits = model(row[None, 12-length:11])[0, -1].double()
            assert nll[i, j].item()==pytest.approx(-logits.log_softmax(-1)[row[-1]].item(), abs=1e-6)
    assert nll.dtype==torch.float64 and nll.shape==(5, 3)


def test_the_same_targets_at_every_length():
    "A spy sees contexts that all end right before the same last tokens."
    spy, segments = Counting(lambda k: .5), torch.randint(2, (6, 16), generator=torch.Generator().manual_seed(2))
    last_token_nll(spy, segments, [4, 8, 16], batch_size=6)
    assert [t.shape[1] for t in spy.seen]==[3, 7, 15]
    for seen in spy.seen: assert_close(seen, segments[:, 15-seen.shape[1]:15])


def test_perplexity_averages_losses_first():
    nll = torch.tensor([2., 4., 8.]).log()
    assert last_token_perplexity(nll).item()==pytest.approx(4., abs=1e-6)
    assert_close(last_token_perplexity(nll[:, None].expand(3, 2).numpy()), torch.full((2,), 4.).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize('last', [False, True])
def test_a_uniform_model_has_the_size_of_its_vocabulary(dtype, last):
    def uniform(tokens): return torch.full((*tokens.shape[:1 if last else 2], 10), -3., dtype=dtype)
    segments = torch.randint(10, (4, 64))
    assert_close(last_token_perplexity(uniform, segments, [2, 16, 64]), torch.full((3,), 10.).double())
    if not last: assert non_overlapping_perplexity(uniform, segments, 16)==pytest.approx(10., rel=1e-12)


def test_padded_batches_equal_singles():
    "3 and 5 real tokens, padded on either side with an id that is also a real token."
    model, texts = Bigram(), [torch.tensor([0, 3, 0]), torch.tensor([0, 0, 5, 0, 7])]
    singles = torch.cat([sliding_window_nll(model, t, 4, 2) for t in texts])
    assert len(singles)==2+4
    for left in (True, False):
        rows, mask = 0*ones(10).view(2, 5), torch.zeros(2, 5)
        for row, real, t in zip(rows, mask, texts):
            place = slice(5-len(t), 5) if left else slice(0, len(t))
            row[place], real[place] = t, 1
        for bos in (None, 10):
            want = torch.cat([sliding_window_nll(model, t, 4, 2, bos=bos) for t in texts])
            assert_close(sliding_window_nll(model, rows, 4, 2, attention_mask=mask, bos=bos), want, rtol=0, atol=1e-5)
    assert len(sliding_window_nll(model, 0*ones(9), 4, 4))==8             # a text of nothing but token 0 keeps all its tokens
    with pytest.raises(ValueError, match='attention_mask'): sliding_window_nll(model, rows, 4, 2, attention_mask=mask[:, 1:])


@pytest.mark.parametrize('bos', [None, 9])
@pytest.mark.parametrize('starts_with_it', [False, True])
def test_bos_once_per_window_and_never_scored(bos, starts_with_it):
    seen = []
    def spy(tokens):
        seen.append(tokens)
        return torch.zeros(*tokens.shape, 10)
    text = torch.arange(24)%8
    if starts_with_it: text[0] = 9
    nll = sliding_window_nll(spy, text, 6, 3, bos=bos)
    windows = [w for batch in seen for w in batch]
    assert len(nll)==23 and len(windows)==7                              # windows end at input 6, 9, …, 21 and at the last, 23
    counts = [int((w==9).sum()) for w in windows]
    at_start = [int(w[0])==9 for w in windows]
    assert sum(counts)==sum(at_start)                                     # nowhere but in front
    assert counts==([1]*7 if bos else [1]+[0]*6 if starts_with_it else [0]*7)
    seen.clear()
    last_token_nll(spy, text[None], [8, 24], bos=bos)
    assert [int((b==9).sum()) for b in seen]==([1, 1] if bos else [0, int(starts_with_it)])


@pytest.mark.parametrize('window, stride', [(6, 3), (4, 4), (40, 1)])
def test_bos_between_documents_is_read_and_not_scored(window, stride):
    "Every token costs 1 nat or so, the BOS 100"
    seen = []
    def dear(tokens):
        seen.append(tokens)
        return torch.zeros(*tokens.shape, 10).index_fill(2, torch.tensor(9), -100.)
    text = torch.arange(24)%8
    text[[5, 6, 12, 18, 23]] = 9
    nll = sliding_window_nll(dear, text, window, stride, bos=9)
    assert_close(nll, torch.full((18,), math.log(9)).double())
    assert sum(int((w==9).sum()) for batch in seen for w in batch)>=4
    assert (sliding_window_nll(dear, text, window, stride)>99).sum()==5   # without bos= it is a token like any other
    assert sliding_window_perplexity(dear, [text, text[:9]], window, stride, bos=9)==pytest.approx(9)
    with pytest.raises(ValueError, match=r'segments \[1\] end in bos=9'): last_token_nll(dear, torch.stack([text[:20], text[4:]]), [4], bos=9)
    with pytest.raises(ValueError, match='nothing to score but bos=9'): sliding_window_nll(dear, text[5:7], window, stride, bos=9)
    assert last_token_nll(dear, torch.stack([text[:20], text[4:]]), [4]).shape==(2, 1)


def test_stride_one_gives_every_token_a_full_window():
    window, text = 6, ones(40)
    got = sliding_window_nll(Counting(lambda k: k/10), text, window, 1)
    assert_close(got, torch.tensor([min(t, window)/10 for t in range(1, 40)]).double())


@pytest.mark.parametrize('size, window, stride', [(2, 5, 5), (6, 5, 5), (7, 5, 5), (41, 5, 5), (40, 8, 3), (40, 8, 1), (9, 64, 64), (40, 1, 1)])
def test_every_token_but_the_first_is_scored_once(size, window, stride):
    "The context of token t by the definition: blocks of inputs move on by a stride, and each scores what is new."
    nll = sliding_window_nll(Counting(lambda k: k/100), ones(size), window, stride)
    context = []
    for t in range(1, size):
        start = 0
        while start+window<t: start += stride
        context.append(t-start)
    assert_close(nll, torch.tensor(context).double()/100)


def test_non_overlapping_falls_while_the_last_token_does_not():
    "Level beyond 4 tokens of context, and still the blocks look better and better."
    level = Counting(lambda k: 1/min(k, 4))
    last = last_token_perplexity(level, ones(64).view(1, 64), [8, 16, 32, 64])
    assert_close(last, last[:1].expand(4))
    blocks = [non_overlapping_perplexity(level, ones(257), n) for n in (4, 8, 16, 32, 64)]
    assert blocks==sorted(blocks, reverse=True) and blocks[0]-blocks[-1]>.1
    assert blocks[1]==pytest.approx(math.exp((1+1/2+1/3+5/4)/8))


def test_documents_are_not_joined():
    model, texts = Bigram(), [torch.arange(9), torch.arange(5)+3, torch.tensor([4])]
    nll = sliding_window_nll(model, texts, 4, 4)
    assert_close(nll, torch.cat([sliding_window_nll(model, t, 4, 4) for t in texts[:2]]), rtol=0, atol=1e-6)
    assert_close(sliding_window_nll(model, [t.tolist() for t in texts], 4, 4), nll)
    assert_close(sliding_window_nll(model, texts[0].numpy().astype(np.uint16), 4, 4), nll[:8])


def test_models_come_back_as_they_were():
    "Modes, gradients, and tables cached on the way: training goes on after a measurement."
    class Caching(Bigram):
        table_ = None
        def forward(self, tokens):
            if self.table_ is None: self.table_ = torch.ones(self.table.embedding_dim)*2
            return self.out(self.dropout(self.table(tokens)*self.table_))
    model = Caching()
    model.out.eval()
    segments = torch.randint(11, (4, 8))
    first, second = (last_token_nll(model, segments, [4, 8]) for _ in range(2))
    assert_close(first, second, rtol=0, atol=0)                           # dropout was off
    assert (model.training, model.dropout.training, model.out.training)==(True, True, False)
    model(segments).logsumexp(-1).sum().backward()                        # fails if the table were an inference tensor
    assert model.table.weight.grad is not None and not first.requires_grad


@pytest.mark.parametrize('call, message', [
    (lambda m, s: last_token_nll(m, s, [8, 4]), 'sorted'), (lambda m, s: last_token_nll(m, s, [4, 4]), 'sorted'),
    (lambda m, s: last_token_nll(m, s, [1, 4]), 'above 1'), (lambda m, s: last_token_nll(m, s, [0]), 'above 1'),
    (lambda m, s: last_token_nll(m, s, [4, math.inf]), r'lengths=\[4, inf\]'), (lambda m, s: last_token_nll(m, s, [math.nan]), r'lengths=\[nan\]'),
    (lambda m, s: last_token_nll(m, s, [2.5, 4]), r'lengths=\[2.5, 4\]'), (lambda m, s: last_token_nll(m, s, ['4']), r"lengths=\['4'\]"),
    (lambda m, s: last_token_nll(m, s, [4, 9]), 'length 9 is longer than the segments, which have 8'),
    (lambda m, s: last_token_nll(m, s+9, [4]), "outside the model's vocabulary of 11"), (lambda m, s: last_token_nll(m, s-1, [4]), 'negative'),
    (lambda m, s: last_token_nll(m, s, [4], bos=11), 'bos 11'), (lambda m, s: last_token_nll(m, s[:0], [4]), 'no tokens'),
    (lambda m, s: last_token_nll(m, s.float(), [4]), 'whole numbers'), (lambda m, s: last_token_nll(m, s, [4], batch_size=-1), 'batch_size=-1'),
    (lambda m, s: non_overlapping_perplexity(m, s[0], 0), 'window=0'), (lambda m, s: sliding_window_perplexity(m, s[0], 4, 5), 'stride=5'),
    (lambda m, s: sliding_window_perplexity(m, s[0], 4, 0), 'stride=0'), (lambda m, s: non_overlapping_perplexity(m, s[0, :1], 4), 'two tokens'),
    (lambda m, s: non_overlapping_perplexity(m, [], 4), 'no tokens')])
def test_wrong_input_is_named_before_any_forward(call, message):
    class Never(Bigram):
        def forward(self, tokens): raise AssertionError('the model ran')
    with pytest.raises(ValueError, match=message): call(Never(), torch.arange(16).view(2, 8)%8)


def test_a_target_outside_the_logits_is_named():
    with pytest.raises(ValueError, match='token id 12 is to be scored'):
        last_token_nll(lambda tokens: torch.zeros(len(tokens), 10), torch.full((1, 4), 12), [4])


def test_paired_difference_by_hand():
    "Two clusters of unequal size: residual sums ±1.2 over five pairs."
    got = paired_difference([1., 2., 3., 4., 5.], [0., 1., 2., 3., 4.], ['a', 'a', 'b', 'b', 'b'])
    assert (got.mean, got.se, got.n, got.clusters)==(1., 0., 5, 2)
    got = paired_difference(torch.tensor([1., 1., 0., 0., 0.]), torch.zeros(5), [1, 1, 2, 2, 2])
    se = math.sqrt(2*2*1.2**2)/5                                          # G/(G−1)·Σ(Σ residuals)² = 2·(1.2² + 1.2²)
    assert (got.mean, got.se)==(pytest.approx(.4), pytest.approx(se))
    assert got.high-got.mean==pytest.approx(12.7062*se, rel=1e-5)         # Student's t with one degree of freedom
    assert paired_difference([3.], [1.]).low==-math.inf


def test_paired_difference_covers_the_truth():
    "Of 400 experiments with 6 documents of 5 alike segments, about 95 % of the intervals hold the true mean; ignoring documents, far fewer."
    rng = np.random.default_rng(0)
    held = naive = 0
    for _ in range(400):
        d = .3+rng.normal(size=(6, 1)).repeat(5, 1)+.3*rng.normal(size=(6, 5))
        for grouped in (True, False):
            got = paired_difference(d.ravel(), np.zeros(30), np.arange(6).repeat(5) if grouped else None)
            inside = got.low<.3<got.high
            held, naive = held+inside*grouped, naive+inside*(not grouped)
    assert .92<=held/400<=.98 and naive/400<.8


def gpt2(**change):
    transformers = pytest.importorskip('transformers')
    torch.manual_seed(0)
    sizes = dict(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=24, bos_token_id=0, eos_token_id=0) | change
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))


def test_hugging_face_models_are_read_directly():
    model = gpt2()
    segments = torch.randint(50, (5, 20), generator=torch.Generator().manual_seed(3))
    plain = lambda tokens: model(tokens).logits  # noqa: E731
    got = last_token_nll(model, segments, [2, 10, 20])
    model.eval()
    assert_close(got, last_token_nll(plain, segments, [2, 10, 20]), rtol=0, atol=1e-5)
    for window, stride in [(12, 12), (8, 3)]:
        assert_close(sliding_window_nll(model, segments.flatten(), window, stride), sliding_window_nll(plain, segments.flatten(), window, stride),
                     rtol=0, atol=1e-5)


def test_learned_positions_have_a_limit_and_it_is_named_before_any_forward(monkeypatch):
    model = gpt2()
    segments = torch.randint(50, (2, 40))
    assert max_positions(model)==24
    last_token_nll(model, segments, [25])                                  # 24 of context and the scored one
    monkeypatch.setattr(model, 'forward', lambda *a, **k: pytest.fail('the model ran'))
    for call in (lambda: last_token_nll(model, segments, [4, 26]), lambda: last_token_nll(model, segments, [25], bos=1),
                 lambda: non_overlapping_perplexity(model, segments, 25), lambda: sliding_window_perplexity(model, segments, 24, 4, bos=1)):
        with pytest.raises(ValueError, match='25 tokens is longer than the 24 positions'): call()


@pytest.mark.parametrize('name, sizes, limit', [
    ('OPT', dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=32, max_position_embeddings=24, word_embed_proj_dim=16), 24),
    ('GPTJ', dict(n_embd=32, n_layer=1, n_head=2, n_positions=24, rotary_dim=8), 24),
    ('GPTNeoX', dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=24), None),
    ('Bloom', dict(hidden_size=16, n_layer=1, n_head=2), None)])
def test_limits_of_other_families(name, sizes, limit):
    transformers = pytest.importorskip('transformers')
    config = getattr(transformers, f'{name}Config')(vocab_size=50, bos_token_id=0, eos_token_id=0, pad_token_id=1, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert max_positions(model)==limit
    segments = torch.randint(2, 50, (2, 40))
    if limit is None: assert last_token_nll(model, segments, [40]).isfinite().all()
    else:
        last_token_nll(model, segments, [limit+1])
        with pytest.raises(ValueError, match=f'than the {limit} positions'): last_token_nll(model, segments, [limit+2])


def test_stated_positions_of_a_homemade_model():
    model = nn.ModuleDict({'words': nn.Embedding(30, 4), 'where': nn.Embedding(12, 4)})
    model.config = SimpleNamespace(vocab_size=30, max_position_embeddings=12)
    assert max_positions(model)==12
    model.config.max_position_embeddings = 13                              # no table of that size: a rotary model states one too
    assert max_positions(model) is None
