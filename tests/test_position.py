"What the pages of the fixed encodings do not show: other default types, autocast, step-by-step decoding, copies inside a model."
import copy
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.testing import assert_close

from sandwich_repro.absolute import NoPE, Rotary, Sinusoidal, sinusoidal_embedding
from sandwich_repro.alibi import alibi_bias, alibi_slopes
from sandwich_repro.attention import biased_attention
from sandwich_repro.encodings import ENCODINGS, make_encoding
from sandwich_repro.erf import theoretical_receptive_field
from sandwich_repro.perplexity import last_token_nll, sliding_window_perplexity
from sandwich_repro.position import FixedBias, PositionalEncoding, relative_distance
from sandwich_repro.window import window_bias


@pytest.fixture
def bfloat16_default():
    "The default type a trainer sets while it builds a model in true bfloat16"
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


def encodings():
    return [NoPE(), Sinusoidal(8), Rotary(8), Rotary(8, interleaved=True, rotary_dim=4),
            FixedBias(alibi_bias, slopes=alibi_slopes(2)), FixedBias(window_bias, window=3, n_heads=2)]


def outputs(encoding, positions, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 2, len(positions), 8, generator=g, dtype=torch.float32).to(dtype)
    bias = encoding.bias(positions)
    return [encoding.embed(q[0], positions), *encoding.rotate(q, k, positions, positions), *([] if bias is None else [bias])]


@pytest.mark.parametrize('i', range(6))
def test_built_under_a_bfloat16_default_gives_the_same_float32(i, bfloat16_default):
    encoding, positions = encodings()[i], torch.arange(300, 320)
    got = outputs(encoding, positions)
    torch.set_default_dtype(torch.float32)
    assert_close(got, outputs(encodings()[i], positions), atol=0, rtol=0)


@pytest.mark.parametrize('i', range(6))
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_narrowing_the_model_changes_no_output(i, dtype):
    model = nn.ModuleDict({'encoding': encodings()[i], 'layer': nn.Linear(2, 2)})
    narrow, positions = copy.deepcopy(model).to(dtype), torch.arange(300, 320)
    assert narrow['layer'].weight.dtype == dtype
    for low, high in zip(outputs(narrow['encoding'], positions, dtype), outputs(model['encoding'], positions, dtype)):
        assert_close(low, high, atol=0, rtol=0)
    narrow.load_state_dict(model.state_dict())
    assert not any(name.startswith('encoding') for name in model.state_dict())


@pytest.mark.parametrize('name', ENCODINGS)
def test_a_compiler_takes_a_whole_encoding(name):
    "One graph, with no way back to Python in between, and the same numbers"
    encoding, positions = make_encoding(name, 2, 16, **dict(window=3) if name=='window' else {}), torch.arange(300, 320)
    (q, k), x = torch.randn(2, 1, 2, 20, 8), torch.randn(1, 20, 16)
    def everything(q, k, p): return encoding.embed(x, p), encoding.rotate(q, k, p, p), encoding.bias(p)
    torch.compiler.reset(), counters.clear()
    assert_close(torch.compile(everything, backend='eager')(q, k, positions), everything(q, k, positions), atol=1e-5, rtol=0)
    assert not counters['graph_break']


@pytest.mark.parametrize('i', range(6))
def test_autocast_leaves_positions_alone(i):
    encoding, positions = encodings()[i], torch.arange(2000, 2010)
    with torch.autocast('cpu', torch.bfloat16):
        inside = outputs(encoding, positions)
    assert_close(inside, outputs(encodings()[i], positions), atol=0, rtol=0)


def test_decoding_token_by_token_rebuilds_a_table_rarely(monkeypatch):
    calls = []
    monkeypatch.setattr('sandwich_repro.absolute.sinusoidal_embedding', lambda *a: calls.append(1) or sinusoidal_embedding(*a))
    rotary, k = Rotary(8), torch.ones(1, 1, 1, 8)
    for step in range(1000):
        rotary.rotate(k, k, torch.tensor([step]), torch.tensor([step]))
    assert 1 <= len(calls) <= 11


def test_integer_positions_of_any_width_and_layout():
    positions = torch.tensor([[0, 0, 1, 2], [0, 1, 2, 3]])
    x = torch.randn(2, 3, 4, 8, generator=torch.Generator().manual_seed(0))
    expected = Rotary(8).rotate(x, x, positions, positions)
    assert_close(Rotary(8).rotate(x, x, positions.int(), positions.int()), expected)
    assert_close(Rotary(8).rotate(x.transpose(1, 2).contiguous().transpose(1, 2), x, positions, positions), expected)
    moved = Rotary(8).rotate(x, x, positions - 5, positions - 5)       # before position 0 as well
    assert_close(moved[0] @ moved[1].mT, expected[0] @ expected[1].mT)


@pytest.mark.parametrize('i', [4, 5])
def test_bias_is_one_function_of_distance_in_every_layout(i):
    encoding, full = encodings()[i], relative_distance(12)
    assert_close(encoding.bias(full.flatten()).view(2, 12, 12), encoding.bias(full), atol=0, rtol=0)
    for q_len in (1, 5, 12):
        assert_close(encoding.bias(relative_distance(q_len, 12)), encoding.bias(full)[:, 12 - q_len:], atol=0, rtol=0)
    assert encoding.bias(torch.empty(0, 3, dtype=torch.int64)).shape == (2, 0, 3)


def test_a_subclass_keeps_its_own_buffers_wide_on_every_route():
    class Own(PositionalEncoding):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)
            self.register_buffer('count', torch.arange(3))

    for route in (lambda m: m.half(), lambda m: m.bfloat16(), lambda m: m.type(torch.float16), lambda m: m.to('cpu', torch.bfloat16)):
        model = route(nn.Sequential(Own(), nn.Linear(2, 2)))
        assert model[0].inner.weight.dtype == torch.float32 and model[1].weight.dtype.itemsize == 2
    assert model[0].count.dtype == torch.int64


def thrown(name):
    "An encoding inside a model, its parameters thrown far below by one step, and not read since"
    encoding = make_encoding(name, 4, 8)
    model = nn.ModuleDict({'layers': nn.ModuleList([nn.Linear(2, 2), encoding])})
    optimizer = torch.optim.SGD(model.parameters(), lr=1.)
    for p in model.parameters(): p.grad = torch.full_like(p, 1e9)
    optimizer.step()
    return model, {'layers.1.'+n for n in encoding._bounds}


READERS = {'parameters': lambda m: [p for i, p in enumerate(m.parameters()) if i>1], 'state_dict': lambda m: m.state_dict(),
           'named_parameters': lambda m: dict(m.named_parameters()), 'layer': lambda m: m['layers'].state_dict(),
           'not recursive': lambda m: dict(m['layers'][1].named_parameters(recurse=False)),
           'copy': lambda m: nn.ModuleDict(m).state_dict()}


@pytest.mark.parametrize('name', ['kerple_log', 'kerple_power', 'learned_sandwich'])
@pytest.mark.parametrize('reader', READERS)
def test_bounds_hold_however_a_model_is_read_after_a_step(name, reader):
    model, bounded = thrown(name)
    read = READERS[reader](model)
    values = read if isinstance(read, list) else [v for k, v in read.items() if k.split('.')[-1] in {b.split('.')[-1] for b in bounded}]
    assert len(values)==len(bounded) and all(v.min().item() >= .01 for v in values)


LEARNED = ['kerple_log', 'kerple_power', 't5', 'learned_sandwich']


@pytest.mark.parametrize('name', LEARNED)
def test_learned_under_a_bfloat16_default_are_the_same_float32(name, bfloat16_default):
    torch.manual_seed(0)
    narrow, distance = make_encoding(name, 4, 8), torch.arange(300)
    got = narrow.bias(distance)
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    wide = make_encoding(name, 4, 8)
    assert [p.dtype for p in narrow.parameters()]==[torch.float32]*len(list(wide.parameters()))
    assert_close(got, wide.bias(distance), atol=0, rtol=0)


@pytest.mark.parametrize('name', LEARNED)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_learned_survive_a_16_bit_checkpoint_and_16_bit_parameters(name, dtype):
    distance, model = torch.arange(2000), nn.ModuleDict({'layer': nn.Linear(2, 2), 'encoding': make_encoding(name, 4, 8)})
    saved = {k: v.to(dtype) for k, v in model.state_dict().items()}
    model.load_state_dict(saved)                                    # copied: values rounded once, types kept
    want = model['encoding'].bias(distance).detach()
    model.load_state_dict(saved, assign=True)
    assert all(p.dtype==torch.float32 for p in model['encoding'].parameters()) and model['layer'].weight.dtype==dtype
    assert_close(model['encoding'].bias(distance), want, atol=0, rtol=0)
    for n, p in list(model['encoding'].named_parameters()): setattr(model['encoding'], n, nn.Parameter(p.to(dtype)))
    got = model['encoding'].bias(distance)
    assert got.dtype==torch.float32
    assert_close(got, want, atol=0, rtol=0)


WITH_BIAS = ['alibi', 'window', 'sandwich', 'smoothed_sandwich', *LEARNED]


@pytest.mark.parametrize('name', WITH_BIAS)
@pytest.mark.parametrize('dtype', [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_integers_of_any_width_are_the_same_distances(name, dtype):
    encoding = make_encoding(name, 4, 8, **({'window': 300} if name=='window' else {}))
    info = torch.iinfo(dtype)
    for distance in (torch.arange(max(info.min, -128), min(info.max, 255)+1), torch.tensor([[0, 3], [2, 1]]), torch.tensor(7)):
        assert_close(encoding.bias(distance.to(dtype)), encoding.bias(distance), atol=0, rtol=0)


@pytest.mark.parametrize('dtype', [np.int64, np.int32, np.uint8])
def test_whole_numbers_of_numpy_are_whole_numbers(dtype):
    n, distance = dtype(6), torch.arange(70)
    for name, options in {'alibi': dict(recipe='official', shift=np.float32(2)), 'window': dict(window=dtype(40)), 'sandwich': dict(d_bar=dtype(64)),
                          'smoothed_sandwich': dict(n_fit=dtype(20)), 't5': dict(n_buckets=dtype(16), max_distance=dtype(64))}.items():
        torch.manual_seed(0)
        got = make_encoding(name, n, dtype(48), **options).bias(distance)
        torch.manual_seed(0)
        want = make_encoding(name, 6, 48, **{k: v if isinstance(v, str) else v.item() for k, v in options.items()}).bias(distance)
        assert_close(got, want, atol=0, rtol=0)
    assert_close(window_bias(distance, dtype(40), n), window_bias(distance, 40, 6))
    assert_close(alibi_slopes(n, 'official'), alibi_slopes(6, 'official'))
    q = torch.randn(1, 2, 9, 4)
    assert_close(biased_attention(q, q, q, window=dtype(3)), biased_attention(q, q, q, window=3))
    assert theoretical_receptive_field(dtype(3), dtype(2))==5
    uniform, text = lambda t: torch.zeros(*t.shape, 10), torch.arange(9)  # noqa: E731
    assert sliding_window_perplexity(uniform, text, dtype(4), dtype(2), batch_size=dtype(2))==pytest.approx(10)
    assert last_token_nll(uniform, text[None], np.array([4, 9]), batch_size=dtype(2)).shape==(1, 2)
    assert last_token_nll(uniform, text[None], torch.tensor([4, 9])).shape==(1, 2)


class Gives(PositionalEncoding):
    "A user's own encoding whose bias is wrong"
    def __init__(self, fn):
        super().__init__()
        self.fn = fn
    def bias(self, distance): return self.fn(distance)


@pytest.mark.parametrize('fn, gave', [(lambda d: -d.expand(2, *d.shape), 'torch.int64 of shape (2, '), (lambda d: -d.float(), 'torch.float32 of shape ('),
                                      (lambda d: d.expand(2, *d.shape)>3, 'torch.bool of shape (2, '), (lambda d: -d.numpy(), 'ndarray'),
                                      (lambda d: -d.float().expand(2, *d.shape).to('meta'), 'torch.float32 of shape (2, ')])
@pytest.mark.parametrize('backend', ['auto', 'sdpa', 'materialized', 'reference'])
def test_a_wrong_bias_of_ones_own_is_named(fn, gave, backend):
    q = torch.randn(1, 2, 9, 4)
    for mask in (None, torch.arange(9)[None]%3>0):
        with pytest.raises(ValueError, match=re.escape(f'the bias of Gives is {gave}')) as error:
            biased_attention(q, q, q, Gives(fn), backend=backend, key_padding_mask=mask)
        assert 'need floating-point numbers of shape (heads, *distances)' in str(error.value)


OPTIONS = {'window': {'window': 300}}


@pytest.mark.parametrize('name', ENCODINGS)
def test_an_encoding_without_memory_comes_back_from_a_checkpoint(name):
    "Built on the meta device, or moved there and emptied: whatever is in no checkpoint is right all the same"
    encoding, distance = make_encoding(name, 4, 8, **OPTIONS.get(name, {})), torch.arange(300)
    with torch.device('meta'): built = make_encoding(name, 4, 8, **OPTIONS.get(name, {}))
    for empty in (built, copy.deepcopy(encoding).to('meta'), copy.deepcopy(encoding)):
        empty = empty.to_empty(device='cpu')
        empty.load_state_dict(encoding.state_dict())
        got, want = empty.bias(distance), encoding.bias(distance)
        assert got is want is None or torch.equal(got, want)


@pytest.mark.parametrize('name', WITH_BIAS)
def test_distances_that_are_none_are_named(name):
    encoding = make_encoding(name, 4, 8, **OPTIONS.get(name, {}))
    for wrong, told in ((np.arange(3), 'is a ndarray'), ([0, 1], 'is a list'), (3, 'is a int'), (None, 'is a NoneType'), (torch.ones(2)>0, 'is of torch.bool')):
        with pytest.raises(ValueError, match=f'distance {told}: need'): encoding.bias(wrong)
    if name=='t5': return                                             # its buckets count whole tokens
    whole = relative_distance(20)
    assert_close(encoding.bias(whole.double()), encoding.bias(whole))
    assert encoding.bias(whole/2).shape==(4, 20, 20)


@pytest.mark.parametrize('name', ['kerple_log', 'kerple_power', 'learned_sandwich'])
@pytest.mark.parametrize('strict', [True, False])
def test_bounded_encodings_can_be_exported(name, strict):
    class Asked(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoding = make_encoding(name, 4, 8)
        def forward(self, distance): return self.encoding.bias(distance)
    asked, distance = Asked(), torch.arange(9)
    assert_close(torch.export.export(asked, (distance,), strict=strict).module()(distance), asked(distance))


@pytest.mark.parametrize('name', ['kerple_log', 'kerple_power', 'learned_sandwich'])
def test_functional_training_keeps_within_bounds_and_comes_back(name):
    "Parameters that torch.func hands over are projected by value, and beyond a bound they still get a gradient"
    encoding, distance = make_encoding(name, 4, 8), torch.arange(40)
    class Asked(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoding = encoding
        def forward(self, distance): return self.encoding.bias(distance)
    asked = Asked()
    far_below = {n: torch.full_like(p, -1e9) for n, p in asked.named_parameters()}
    at_bound = {n: torch.full_like(p, .010000001).requires_grad_() for n, p in asked.named_parameters()}
    call = lambda p: torch.func.functional_call(asked, p, (distance,))
    got, want = torch.func.grad(lambda p: call(p).sum())(far_below), torch.autograd.grad(call(at_bound).sum(), list(at_bound.values()))
    for g, w in zip(got.values(), want): assert_close(g, w)
    assert all((p==-1e9).all() for p in far_below.values())           # written to by nobody
    two = torch.func.vmap(call)({n: torch.stack([p, at_bound[n].detach()]) for n, p in far_below.items()})
    assert torch.equal(two[0], two[1])
