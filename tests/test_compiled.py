"What a GPU would run, seen by a compiler on a CPU: FlexAttention inside of compiled blocks, gradients included."
import pytest
import torch
from torch._dynamo.utils import counters
from torch.testing import assert_close

import sandwich_repro.attention as attention
from sandwich_repro import ENCODINGS, ModelConfig, TransformerLM, biased_attention, make_encoding
from sandwich_repro.absolute import Rotary

OPTIONS = dict(window=dict(window=100))
LENGTH = 140  # more than a tile


@pytest.fixture
def flex(monkeypatch):
    "A CPU that takes FlexAttention for its own."
    monkeypatch.setattr(attention, '_flex_problem', lambda device: None)
    monkeypatch.setattr('torch.nn.attention.flex_attention._validate_device', lambda *_: None)
    torch.compiler.reset(), counters.clear()


def gradients(model, tokens):
    model.zero_grad()
    with torch.autocast('cpu', torch.bfloat16): loss = model(tokens[:, :-1], targets=tokens[:, 1:])
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize('name', ENCODINGS)
def test_blocks_are_one_graph_on_flex_attention(name, flex):
    "All blocks share it, later steps too; and every parameter gets the gradient of the engine of a CPU"
    torch.manual_seed(0)
    model = TransformerLM(ModelConfig(64, 2, 2, 32, LENGTH, name, OPTIONS.get(name, {})), backend='sdpa')
    tokens = torch.randint(64, (2, LENGTH+1))
    want = gradients(model, tokens)
    model.backend = 'auto'
    for block in model.blocks: block.compile(backend='eager', fullgraph=True)
    for _ in range(3): got = gradients(model, tokens)
    assert counters['stats']['unique_graphs']==1 and got.keys()==want.keys()
    for key, value in want.items(): assert (got[key]-value).norm()<.03*value.norm(), key  # of bfloat16: in another order
    with torch.no_grad(): model(tokens[:, :-1])
    assert counters['stats']['unique_graphs']==2


@pytest.mark.parametrize('name', ['none', 'rotary', 'alibi', 'kerple_log', 't5'])
def test_attention_that_is_trained_is_one_graph(name, flex):
    encoding, x = make_encoding(name, 2, 32), torch.randn(3, 1, 2, LENGTH, 16)
    def loss(q, k, v): return biased_attention(q, k, v, encoding).square().sum()
    want = torch.autograd.grad(loss(*(x := x.requires_grad_())), x)[0]
    got = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend='eager')(*x), x)[0]
    assert_close(got, want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize('options', [{}, dict(interleaved=True), dict(rotary_dim=8), dict(rotary_dim=8, interleaved=True)])
def test_a_compiler_turns_the_same_way(options):
    encoding, positions = Rotary(16, **options), torch.arange(300, 320)
    x = torch.randn(2, 1, 2, 20, 16, requires_grad=True)
    def turned(q, k): return sum(t.sin().sum() for t in encoding.rotate(q, k, positions, positions))
    want = torch.autograd.grad(turned(*x), x)[0]
    assert_close(torch.autograd.grad(torch.compile(turned, fullgraph=True, backend='aot_eager')(*x), x)[0], want)
