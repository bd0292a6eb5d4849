"Receptive fields of models whose gradients are known, and of real ones under every condition a caller may be in."
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from sandwich_repro.config import ModelConfig
from sandwich_repro.erf import cumulative_gradient, empirical_receptive_field, erf_spread, normalized_gradient, theoretical_receptive_field
from sandwich_repro.model import TransformerLM


class Causal(nn.Module):
    "Two nonlinear causal mixing layers, optionally checkpointed."
    def __init__(self, vocab=11, width=8, reentrant=None, scale=1.):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.reentrant, self.scale = nn.Embedding(vocab, width), reentrant, scale
        self.layers, self.out, self.dropout = nn.ModuleList(nn.Linear(width, width) for _ in range(2)), nn.Linear(width, vocab), nn.Dropout(.3)

    def get_input_embeddings(self): return self.table

    def layer(self, x, linear): return x+linear(self.dropout(x).cumsum(1)).tanh()

    def forward(self, tokens=None, *, embeddings=None):
        x = self.table(tokens) if embeddings is None else embeddings
        for linear in self.layers:
            x = self.layer(x, linear) if self.reentrant is None else checkpoint(self.layer, x, linear, use_reentrant=self.reentrant)
        return self.out(x*self.scale)


def by_hand(model, segments, target):
    "One segment at a time, straight from the definition."
    model = model.eval()
    rows = []
    for row in segments:
        x = model.get_input_embeddings()(row[None, :-1]).detach().requires_grad_()
        g, = torch.autograd.grad(target(model(embeddings=x)[0, -1], row[-1]), x)
        norms = g[0].double().norm(dim=-1)
        rows.append(norms/norms.sum())
    return torch.stack(rows)


def segments(n=5, length=12, vocab=11): return torch.randint(vocab, (n, length), generator=torch.Generator().manual_seed(7))


TARGETS = {'next': lambda logits, token: logits.log_softmax(-1)[token], 'logit': lambda logits, token: logits[token]}


@pytest.mark.parametrize('target', TARGETS)
@pytest.mark.parametrize('batch_size', [1, 2, 16])
def test_batched_equals_one_at_a_time(target, batch_size):
    got = normalized_gradient(Causal(), segments(), target, batch_size=batch_size)
    assert_close(got, by_hand(Causal(), segments(), TARGETS[target]), rtol=1e-4, atol=1e-6)
    assert got.dtype==torch.float64 and got.shape==(5, 11)
    assert_close(got.sum(1), torch.ones(5).double())


def test_segments_do_not_mix():
    "What stands beside a segment in its batch changes nothing."
    one = normalized_gradient(Causal(), segments())
    others = torch.cat([segments()[:1], (segments()[1:]+3)%11])
    assert_close(normalized_gradient(Causal(), others)[0], one[0], rtol=1e-5, atol=1e-8)
    assert (normalized_gradient(Causal(), others)[1:]-one[1:]).abs().max()>1e-3


def test_targets_are_an_argument():
    model = Causal()
    got = {t: normalized_gradient(model, segments(), t) for t in ('next', 'logit', 'hidden')}
    assert (got['next']-got['logit']).abs().max()>1e-4 and (got['hidden']-got['logit']).abs().max()>1e-4
    own = normalized_gradient(model, segments(), lambda logits, token: logits.log_softmax(-1)[range(5), token])
    assert_close(own, got['next'], rtol=1e-4, atol=1e-7)
    hidden = Causal()                                                      # the sum of what the output matrix reads, written as logits
    hidden.out = nn.Linear(8, 11, bias=False)
    nn.init.ones_(hidden.out.weight)
    assert_close(normalized_gradient(hidden, segments(), 'logit'), got['hidden'], rtol=1e-4, atol=1e-7)
    with pytest.raises(ValueError, match='unknown target'): normalized_gradient(model, segments(), 'log')


@pytest.mark.parametrize('reentrant', [None, False, True])
@pytest.mark.parametrize('frozen', [False, True])
@pytest.mark.parametrize('caller', [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_under_every_condition(reentrant, frozen, caller):
    want = normalized_gradient(Causal(), segments())
    model = Causal(reentrant=reentrant)
    for p in list(model.parameters())[:4]: p.requires_grad_(not frozen)
    flags = [p.requires_grad for p in model.parameters()]
    kept = model.out.weight.grad = torch.ones_like(model.out.weight)
    model.layers[0].eval()
    with caller(): got = normalized_gradient(model, segments().clone(), batch_size=2)
    assert_close(got, want, rtol=1e-5, atol=1e-8)
    assert [p.requires_grad for p in model.parameters()]==flags
    assert model.out.weight.grad is kept and (kept==1).all()
    assert all(p.grad is None for p in model.parameters() if p is not model.out.weight)
    assert model.training and not model.layers[0].training


def test_a_failing_model_is_left_as_it_was():
    class Failing(Causal):
        def forward(self, tokens=None, *, embeddings=None): raise RuntimeError('out of luck')
    model = Failing()
    with pytest.raises(RuntimeError): normalized_gradient(model, segments())
    assert model.training and all(p.requires_grad for p in model.parameters())


class Theirs(Causal):
    "By Hugging Face's name, and a dictionary"
    def forward(self, input_ids=None, inputs_embeds=None): return {'loss': None, 'logits': super().forward(input_ids, embeddings=inputs_embeds)}


class Wrapped(nn.Module):
    "A catch-all around another model"
    def __init__(self, model):
        super().__init__()
        self.model = model
    def get_input_embeddings(self): return self.model.get_input_embeddings()
    def forward(self, *args, **options): return self.model(*args, **options)


class Anything(Causal):
    "A catch-all of its own that says nothing of embeddings"
    def forward(self, *inputs, **anything): return super().forward(embeddings=anything.pop('inputs_embeds'), **anything)


@pytest.mark.parametrize('model', [Theirs, lambda: Wrapped(Causal()), lambda: Wrapped(Theirs()), lambda: Wrapped(Wrapped(Causal())), Anything])
@pytest.mark.parametrize('target', ['next', 'hidden'])
def test_catch_alls_and_dictionaries(model, target):
    assert_close(normalized_gradient(model(), segments(), target), normalized_gradient(Causal(), segments(), target))


def test_no_dependence_is_an_error():
    class NoGrad(Causal):
        def forward(self, tokens=None, *, embeddings=None):
            with torch.no_grad(): return super().forward(embeddings=embeddings)
    class Constant(Causal):
        def forward(self, tokens=None, *, embeddings=None): return self.out(torch.zeros(len(embeddings), 8))
    for model in (NoGrad(), Constant()):
        with pytest.raises(ValueError, match='does not depend on the input embeddings'): normalized_gradient(model, segments())
    with pytest.raises(ValueError, match='every gradient is zero'): normalized_gradient(Causal(scale=0.), segments())
    with pytest.raises(ValueError, match='not finite'): normalized_gradient(Causal(scale=math.nan), segments())


def test_tiny_gradients_are_not_lost():
    "Norms are squared: 1e-30 squared is nothing in float32."
    want = normalized_gradient(Causal(), segments(), 'logit')
    assert_close(normalized_gradient(Causal(scale=1e-30), segments(), 'logit'), want, rtol=1e-4, atol=1e-7)


def test_one_entry_per_input_token():
    "Also for a beginning-of-sequence token, and for words that occur twice."
    with_bos = torch.cat([torch.full((5, 1), 10), segments()[:, :1].expand(5, 6), segments()[:, -1:]], 1)
    got = normalized_gradient(Causal(), with_bos)
    assert got.shape==(5, 7) and (got>0).all()


def test_wrong_segments_are_named():
    for wrong, message in [(segments()[0], r'need \(segments, tokens\)'), (segments()[:, :1], '2 tokens or more'), (segments()+9, 'outside'),
                           (segments().float(), 'whole numbers')]:
        with pytest.raises(ValueError, match=message): normalized_gradient(Causal(), wrong)
    with pytest.raises(ValueError, match='batch_size=0'): normalized_gradient(Causal(), segments(), batch_size=0)
    with pytest.raises(ValueError, match='get_input_embeddings'): normalized_gradient(nn.Linear(2, 2), segments())


def test_cumulative_by_hand():
    "Norms .1, .2, .3, .4 from old to new."
    c = cumulative_gradient([[.1, .2, .3, .4]])
    assert_close(c, torch.tensor([.4, .7, .9, 1.]).double())
    assert empirical_receptive_field(c, .85)==3 and empirical_receptive_field(c)==4
    assert (c.diff()>=0).all() and c[-1].item()==pytest.approx(1, abs=1e-6)
    assert_close(cumulative_gradient(np.array([.1, .2, .3, .4])), c)
    assert_close(cumulative_gradient(torch.tensor([[1., 0., 0.], [0., 0., 1.]])), torch.tensor([.5, .5, 1.]).double())


def test_the_threshold_is_to_be_exceeded():
    for n in (50, 100, 200, 1000):                                          # n equal shares: 99 % of them are exactly 0.99
        assert empirical_receptive_field(cumulative_gradient(torch.full((n,), 1/n).double()))==math.floor(.99*n+1e-9)+1
    with pytest.raises(ValueError, match='not above'): empirical_receptive_field(torch.tensor([.5, .9]))
    with pytest.raises(ValueError, match='threshold=1'): empirical_receptive_field(torch.tensor([.5, 1.]), 1)


def test_spread_is_of_the_documents():
    rng = np.random.default_rng(0)
    field = rng.integers(2, 40, 12).repeat(10)                              # twelve documents of ten alike segments
    s = torch.zeros(120, 60)
    for row, n in zip(s, field): row[-n:] = 1/n
    free, grouped = erf_spread(s), erf_spread(s, groups=np.arange(12).repeat(10))
    assert free.erf==grouped.erf and grouped.low<free.low<=free.erf<=free.high<=grouped.high
    assert (grouped.standard_error[:30]>2*free.standard_error[:30]).all()
    assert erf_spread(s, seed=0)==erf_spread(s, seed=0)


@pytest.mark.parametrize('checkpointing', [False, True])
def test_hugging_face_models(checkpointing):
    transformers = pytest.importorskip('transformers')
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=24, bos_token_id=0,
                                                                 eos_token_id=0))
    if checkpointing: model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=True))
    tokens = segments(3, 10, 50)
    class Ours(nn.Module):
        def get_input_embeddings(self): return model.get_input_embeddings()
        def forward(self, embeddings): return model(inputs_embeds=embeddings).logits
    got = normalized_gradient(model, tokens)
    assert model.training and got.shape==(3, 9)
    model.eval()
    assert_close(got, by_hand(Ours(), tokens, TARGETS['next']), rtol=1e-4, atol=1e-6)
    x = model.get_input_embeddings()(tokens[:, :-1]).detach().requires_grad_()
    handle = model.transformer.ln_f.register_forward_pre_hook(lambda module, inputs: inputs[0][:, -1].sum().backward(retain_graph=True))
    model.requires_grad_(False)(inputs_embeds=x)
    handle.remove()
    want = x.grad.double().norm(dim=-1)
    assert_close(normalized_gradient(model, tokens, 'hidden'), want/want.sum(1, keepdim=True), rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match='25 tokens is longer than the 24 positions'): normalized_gradient(model, segments(2, 26, 50))


def ours(encoding, n_layers=2, **options):
    torch.manual_seed(0)
    return TransformerLM(ModelConfig(11, n_layers, 2, 16, 16, encoding, options))


@pytest.mark.parametrize('encoding', ['none', 'sinusoidal', 'rotary', 'alibi', 'sandwich', 'kerple_log', 't5'])
def test_our_model_by_hand(encoding):
    model = ours(encoding)
    got = normalized_gradient(model, segments(3))
    want = []
    for row in segments(3):
        x = model.get_input_embeddings()(row[None, :-1]).detach().requires_grad_()
        g, = torch.autograd.grad(model(embeddings=x)[0, -1].log_softmax(-1)[row[-1]], x)
        want.append(g[0].double().norm(dim=-1))
    want = torch.stack(want)
    assert_close(got, want/want.sum(1, keepdim=True), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize('window, n_layers', [(1, 3), (2, 1), (3, 2), (4, 3), (5, 4)])
def test_a_windowed_model_sees_exactly_its_theoretical_field(window, n_layers):
    model, reach = ours('window', n_layers, window=window), theoretical_receptive_field(window, n_layers)
    assert reach==n_layers*(window-1)+1
    for target in ('next', 'hidden'):
        s = normalized_gradient(model, segments(3, 40), target)
        assert (s[:, :-reach]==0).all() and (s[:, -reach:]>0).all()


@pytest.mark.parametrize('curve', [[], torch.empty(0), torch.ones(2, 3), torch.tensor(1.)])
def test_what_is_no_curve_is_named(curve):
    with pytest.raises(ValueError, match='a cumulative gradient of shape'): empirical_receptive_field(curve)
