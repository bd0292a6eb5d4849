"The model: promises that need every encoding, autocast, or a process's worth of memory."
import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from sandwich_repro.attention import biased_attention
from sandwich_repro.config import ModelConfig
from sandwich_repro.encodings import ENCODINGS
from sandwich_repro.engines import LargestTensor
from sandwich_repro.loss import next_token_loss
from sandwich_repro.model import Block, CausalSelfAttention, KVCache, TransformerLM
from sandwich_repro.position import FixedBias, PositionalEncoding

TOY = ModelConfig(vocab_size=40, n_layers=2, n_heads=4, d_model=32, train_len=16)
OPTIONS = {"window": {"window": 9}}
every = pytest.mark.parametrize("name", ENCODINGS)


def built(name, seed=0, **more):
    torch.manual_seed(seed)
    model = TransformerLM(replace(TOY, encoding=name, encoding_options=OPTIONS.get(name, {}), **more))
    for p in model.encodings.parameters(): torch.nn.init.uniform_(p, .2, 1.5)    # learned biases that matter
    return model


def tokens(*shape, seed=0):
    return torch.randint(40, shape, generator=torch.Generator().manual_seed(seed))


@every
def test_a_mask_of_ones_is_no_mask(name):
    model, text = built(name), tokens(2, 30)
    assert torch.equal(model(text), model(text, attention_mask=torch.ones(2, 30)))
    packed = model(F.pad(text, (1, 0)), attention_mask=F.pad(torch.ones(2, 30), (1, 0)))[:, 1:]
    assert_close(packed, model(text), atol=1e-5, rtol=1e-5)


@every
def test_decoding_uses_the_bias_at_every_step(name):
    "Ten steps of one token equal the whole; when an encoding has a bias, taking it away changes a cached step"
    model, text = built(name), tokens(2, 30)
    with torch.no_grad():
        whole, cache = model(text), model.new_cache()
        steps = [model(text[:, :20], cache=cache), *(model(text[:, i:i + 1], cache=cache) for i in range(20, 30))]
        assert_close(torch.cat(steps, 1), whole, atol=1e-5, rtol=1e-5)
        assert len(cache)==30
        if model.encodings[0].bias(torch.arange(4)) is None: return
        cache = model.new_cache()
        model(text[:, :29], cache=cache)
        model.encodings[0].bias = lambda distance: torch.zeros(4, *distance.shape)
        assert not torch.allclose(model(text[:, 29:], cache=cache)[:, 0], whole[:, 29], atol=1e-4)


@every
def test_autocast_runs_and_is_close(name):
    model, text = built(name), tokens(2, 50)
    whole = model(text)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            loss = F.cross_entropy(model(text).flatten(0, 1), text.flatten())
            logits, cache = model(text), model.new_cache()
            with torch.no_grad(): steps = torch.cat([model(text[:, :40], cache=cache), model(text[:, 40:], cache=cache)], 1)
        loss.backward()
        assert_close(logits.float(), whole, atol=.05, rtol=.05)
        assert_close(steps.float(), whole, atol=.05, rtol=.05)
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        model.zero_grad()


@every
def test_bfloat16_model_keeps_its_encoding(name):
    model, text = built(name), tokens(2, 50)
    whole = model(text)
    model.bfloat16()
    kept = [*model.encodings.parameters(), *model.encodings.buffers()]
    assert all(t.dtype!=torch.bfloat16 for t in kept) and model.head.weight.dtype==torch.bfloat16
    assert_close(model(text).float(), whole, atol=.1, rtol=.1)


@every
def test_lengths_may_grow_and_shrink(name):
    model, text = built(name), tokens(1, 200)
    short = model(text[:, :7])
    long = model(text)
    assert_close(long[:, :7], short, atol=1e-5, rtol=1e-5)
    assert torch.equal(model(text[:, :7]), short)


@every
def test_gradients_equal_those_of_the_reference(name):
    def gradients(backend):
        model = built(name)
        model.backend = backend
        F.cross_entropy(model(tokens(2, 40)).flatten(0, 1), tokens(2, 40, seed=1).flatten()).backward()
        return {n: p.grad for n, p in model.named_parameters()}
    exact = gradients("reference")
    for backend in ("auto", "materialized"):
        got = gradients(backend)
        for n, g in exact.items(): assert_close(got[n], g, atol=1e-5, rtol=1e-4)


@every
def test_gradients_through_embeddings_reach_only_what_is_seen(name):
    model = built(name)
    given = model.get_input_embeddings()(tokens(3, 24)).detach().requires_grad_()
    model.requires_grad_(False)
    model(embeddings=given, last_only=True)[0].sum().backward()
    assert given.grad[0].norm(dim=-1)[-1] > 0 and not given.grad[1:].any()
    assert all(p.grad is None for p in model.parameters())


def test_padding_is_never_seen_even_if_it_is_not_a_number():
    model, text = built("sandwich"), tokens(2, 20)
    mask = torch.arange(26) >= 6
    given = F.pad(model.get_input_embeddings()(text), (0, 0, 6, 0), value=torch.nan)
    for fill in (torch.nan, 1e30):
        given[:, :6] = fill
        assert_close(model(embeddings=given, attention_mask=mask.expand(2, 26))[:, 6:], model(text), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["none", "rotary", "alibi", "t5"])
@pytest.mark.parametrize("junk", [torch.nan, torch.inf, 1e30])
def test_no_gradient_sees_what_lies_in_padding(name, junk):
    mask = torch.arange(26) >= torch.tensor([[6], [0]])
    def measured(fill, cached):
        model = built(name)
        given = model.get_input_embeddings()(tokens(2, 26)).detach()
        given = given.masked_fill(~mask[..., None], fill).requires_grad_()
        cache = model.new_cache() if cached else None
        logits = model(embeddings=given, attention_mask=mask, cache=cache)
        logits.masked_fill(~mask[..., None], 0).square().sum().backward()
        return [given.grad, *(p.grad for p in model.parameters() if p.grad is not None)]
    for cached in (False, True):
        for got, want in zip(measured(junk, cached), measured(0., cached)): assert torch.equal(got, want) and got.isfinite().all()


def test_last_only_with_right_padding_on_a_cache():
    model, text = built("alibi"), tokens(2, 20)
    cache = model.new_cache()
    with torch.no_grad():
        model(text[:, :10], cache=cache)
        mask = torch.tensor([[1]*10, [1]*4 + [0]*6])
        got = model(text[:, 10:], cache=cache, attention_mask=mask, last_only=True)
        assert_close(got[0], model(text)[0, -1], atol=1e-5, rtol=1e-5)
        assert_close(got[1], model(text)[1, 13], atol=1e-5, rtol=1e-5)


def test_last_only_makes_one_row_of_logits_and_one_query():
    sizes = []
    model = built("alibi")
    model.head.register_forward_hook(lambda m, args, out: sizes.append(tuple(args[0].shape)))
    model.blocks[-1].mlp.register_forward_hook(lambda m, args, out: sizes.append(tuple(args[0].shape)))
    model(tokens(2, 30), last_only=True)
    assert sizes==[(2, 1, 32), (2, 32)]


def test_blocks_work_by_themselves():
    x = torch.randn(2, 9, 32)
    encoding = FixedBias(lambda d: -d[None].expand(4, *d.shape))
    attention = CausalSelfAttention(TOY)
    q, k, v = attention.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
    assert_close(attention(x, encoding), attention.out(biased_attention(q, k, v, encoding).transpose(1, 2).flatten(2)))
    assert Block(TOY)(x, encoding).shape==x.shape


def test_attention_makes_its_plan_for_what_a_cache_holds():
    x, encoding, attention, cache = torch.randn(2, 9, 32), FixedBias(lambda d: -d[None].expand(4, *d.shape)), CausalSelfAttention(TOY), KVCache()
    parts = []
    for part in x.split([4, 1, 4], 1):
        parts.append(attention(part, encoding, None, cache, 0))
        cache.keep(part.shape[1], None)
    assert_close(torch.cat(parts, 1), attention(x, encoding))


@pytest.mark.parametrize('dtype', [torch.uint8, torch.int16, torch.uint16, torch.int32])
@pytest.mark.parametrize('name', ['sandwich', 'sinusoidal', 'rotary'])
def test_token_ids_of_any_whole_type(name, dtype):
    model, ids = built(name), tokens(2, 7)
    assert_close(model(ids.to(dtype)), model(ids), rtol=0, atol=0)
    assert_close(model(ids.to(dtype), targets=ids.roll(-1, 1).to(dtype)), model(ids, targets=ids.roll(-1, 1)))


def test_targets_that_are_no_ids_are_refused_in_every_precision():
    model, ids = built('alibi'), tokens(2, 7)
    for autocast in (False, True):
        with torch.autocast('cpu', enabled=autocast), pytest.raises(ValueError, match='targets run from -100'): model(ids, targets=ids.masked_fill(ids==ids[0, 0], -100))


def test_a_loss_without_gradients_makes_none():
    hidden, weight = torch.randn(40, 8), torch.nn.Parameter(torch.randn(30, 8))
    targets = torch.randint(30, (40,))
    with torch.no_grad(), LargestTensor() as seen: loss = next_token_loss(hidden, weight, targets)
    assert seen.nbytes<=4*40*30 and not loss.requires_grad
    assert_close(loss, next_token_loss(hidden, weight, targets).detach())


def test_derivatives_of_many_tokens_at_once_through_rotary():
    model = built('rotary').eval()
    x = torch.randn(3, 1, 6, 32)
    last = lambda e: model(embeddings=e, last_only=True)[0]
    assert_close(torch.func.vmap(last)(x), torch.stack([last(e) for e in x]))
    assert_close(torch.func.jacrev(last)(x[0]), torch.autograd.functional.jacobian(last, x[0]))


def test_options_that_the_model_gives_are_refused():
    with pytest.raises(ValueError, match='n_heads cannot be an option'): replace(TOY, encoding_options=dict(n_heads=4))


def test_the_state_is_plain_and_loads_back():
    model = built("kerple_log")
    again = built("kerple_log", seed=5)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(tokens(2, 12)), model(tokens(2, 12)))
    assert all(isinstance(v, torch.Tensor) for v in model.state_dict().values())


def test_a_cache_copies_linearly():
    "4,096 tokens one by one: 12 doublings, not 4,096 copies"
    cache, kv = KVCache(), torch.zeros(2, 1, 1, 1, 2)
    addresses = set()
    with torch.no_grad():
        for n in range(1, 4097):
            assert cache.extend(0, *kv).shape[3]==n
            cache.length = n
            addresses.add((cache.layers[0].data_ptr(), cache.layers[0].shape[3]))
    assert len(addresses) <= 14


def test_a_windowed_model_reads_only_its_field_for_the_last_token():
    config = replace(TOY, n_layers=4, encoding="window", encoding_options={"window": 9})
    torch.manual_seed(0)
    model, text, read = TransformerLM(config), tokens(2, 500), []
    for block in model.blocks: block.register_forward_hook(lambda m, args, out: read.append((args[0].shape[1], out.shape[1])))
    narrow = model(text, last_only=True)
    assert read==[(33, 25), (25, 17), (17, 9), (9, 1)]           # 4·(9−1)+1 = 33
    assert_close(narrow, model(text)[:, -1], atol=1e-5, rtol=1e-5)
    mask = torch.ones(2, 500)
    mask[0, :480], mask[1, -3:] = 0, 0
    assert_close(model(text, attention_mask=mask, last_only=True)[0], model(text[:1, 480:])[0, -1], atol=1e-5, rtol=1e-5)
    assert_close(model(text, attention_mask=mask, last_only=True)[1], model(text)[1, 496], atol=1e-5, rtol=1e-5)
    given = model.get_input_embeddings()(text).detach().requires_grad_()
    model(embeddings=given, last_only=True).sum().backward()
    assert not given.grad[:, :-33].any() and (given.grad[:, -33:].norm(dim=-1) > 0).all()


def state(cache): return len(cache), None if cache.real is None else cache.real.tolist()


@pytest.mark.parametrize("past", [0, 12])
@pytest.mark.parametrize("where", ["blocks.1.mlp", "blocks.1.attention.out", "head"])
@pytest.mark.parametrize("padded", [False, True])
def test_a_forward_pass_that_fails_leaves_the_cache_as_it_was(past, where, padded):
    model, text, mask = built("alibi"), tokens(2, 20), torch.ones(2, 20).long()
    mask[0, 12:14] = mask[1, :3] = 1 - padded
    read = lambda cache, a, b: model(text[:, a:b], cache=cache, attention_mask=mask[:, a:b])  # noqa: E731
    def fail(*args): raise MemoryError("out of memory")
    with torch.no_grad():
        want, cache = model(text, attention_mask=mask), model.new_cache()
        if past: read(cache, 0, past)
        before = state(cache)
        hook = model.get_submodule(where).register_forward_hook(fail)
        with pytest.raises(MemoryError): read(cache, past, 18)
        hook.remove()
        assert state(cache)==before
        if not past: model(tokens(5, 4), cache=copy.deepcopy(cache))       # nothing is held: another batch may begin
        got = read(cache, past, 20)
        assert_close(got[mask[:, past:].bool()], want[:, past:][mask[:, past:].bool()], atol=1e-5, rtol=1e-5)


@every
@pytest.mark.parametrize("padded", [False, True])
def test_a_cache_goes_from_any_mode_to_any_other(name, padded):
    model, text, mask = built(name), tokens(2, 20), torch.ones(2, 20).long()
    if padded: mask[1, :3] = 0
    want = model(text, attention_mask=mask)[:, 12:].detach()
    modes = [torch.inference_mode, torch.no_grad, torch.enable_grad]
    for first in modes:
        for second in modes:
            cache = model.new_cache()
            with first():
                for a, b in ((0, 8), (8, 12)): model(text[:, a:b], cache=cache, attention_mask=mask[:, a:b])   # leaves room for four
            with second(): got = [model(text[:, i:i + 4], cache=cache, attention_mask=mask[:, i:i + 4]) for i in (12, 16)]
            if second is torch.enable_grad: sum(g.sum() for g in got).backward()
            assert_close(torch.cat(got, 1).detach(), want, atol=1e-5, rtol=1e-5)


def test_a_cache_of_another_batch_or_model_is_refused():
    model, cache = built("alibi"), KVCache()
    with torch.no_grad():
        model(tokens(2, 6), cache=cache)
        for more in ({}, {"attention_mask": torch.tensor([[1, 0]]*3)}):
            with pytest.raises(ValueError, match="holds a batch of 2, the new tokens are a batch of 3"): model(tokens(3, 2), cache=cache, **more)
        for size in (dict(n_heads=2), dict(d_model=64), dict(n_layers=3)):
            with pytest.raises(ValueError, match="a cache serves one model and one batch"): built("alibi", **size)(tokens(2, 1), cache=cache)
        assert len(cache)==6 and model(tokens(2, 1), cache=cache).shape==(2, 1, 40)


@every
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_gradients_of_each_row_by_itself(name, backend):
    "torch.func maps a loss over rows; nothing looks at values it cannot see, nothing is written to a parameter"
    model, text = built(name), tokens(2, 13)
    model.backend = backend
    loss = lambda p, row: torch.func.functional_call(model, p, (row[None, :-1],), {"targets": row[None, 1:]})
    each = torch.func.vmap(torch.func.grad(loss), (None, 0))({n: p.detach() for n, p in model.named_parameters()}, text)
    for i, row in enumerate(text):
        model.zero_grad()
        model(row[None, :-1], targets=row[None, 1:]).backward()
        for n, p in model.named_parameters(): assert_close(each[n][i], p.grad, atol=1e-5, rtol=1e-4)


def test_a_compiler_takes_a_padded_batch_as_one_graph():
    model, text, mask = built("alibi"), tokens(2, 13), torch.arange(13) >= torch.tensor([[4], [0]])
    compiled = torch.compile(lambda mask: model(text, attention_mask=mask), fullgraph=True, backend="eager")
    for given in (mask, torch.ones_like(mask)): assert_close(compiled(given)[given], model(text, attention_mask=given)[given], atol=1e-5, rtol=1e-5)


def test_an_embedding_of_ones_own_is_checked():
    class Own(PositionalEncoding):
        def __init__(self, fn):
            super().__init__()
            self.fn = fn
        def embed(self, x, positions): return self.fn(x)
    for wrong in (lambda x: None, lambda x: x[..., :4], lambda x: x.long()):
        with pytest.raises(ValueError, match="embed of Own gave"): TransformerLM(TOY, Own(wrong))(tokens(2, 5))
    assert TransformerLM(TOY, Own(lambda x: x.double()))(tokens(2, 5)).dtype==torch.float32   # more bits are rounded


def test_ids_of_documents_are_no_mask():
    with pytest.raises(ValueError, match="attention_mask of torch.int64 must be 1 at real tokens"): built("alibi")(tokens(1, 6), attention_mask=torch.tensor([[1, 1, 1, 2, 2, 2]]))
