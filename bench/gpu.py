"One command on one GPU, about six minutes: is the compiled engine right, what does a bias cost there, how fast is the paper's model?"
import copy
import time
import traceback
import warnings
from statistics import median

import plain_python  # noqa: F401
import torch
import torch.nn.functional as F
from measure import HERE, arguments, finish, row

from sandwich_repro import ModelConfig, TransformerLM, biased_attention, make_encoding
from sandwich_repro.attention import available_backends

QUESTION = 'On one GPU'
ALL = {'none': {}, 'rotary': {}, 'sinusoidal': {}, 'alibi': {}, 'window': {'window': 100}, 'sandwich': {}, 'smoothed_sandwich': {}, 'kerple_log': {}, 't5': {}, 'learned_sandwich': {}}
CUDA = torch.cuda.is_available()
DEVICE = torch.device('cuda' if CUDA else 'cpu')
BORN = time.perf_counter()


def wait():
    "Until the device has done what it was given."
    if CUDA: torch.cuda.synchronize()


def seconds(case, rounds):
    "Median of the rounds, after two that warm up."
    taken = []
    for r in range(-2, rounds):
        wait()
        start = time.perf_counter()
        case()
        wait()
        if r >= 0: taken.append(time.perf_counter() - start)
    return median(taken)


def left(minutes, what):
    "Whether there is time for a part."
    used = (time.perf_counter() - BORN) / 60
    print(f'[{used:.1f} min] {what}', flush=True)
    return used < minutes


# ---------------------------------------------------------------- is it right?

def run(tensors, encoding, options, backend, upstream):
    "Output and gradients of queries, keys, values and whatever the encoding learns, in float64."
    inputs = [t.detach().clone().requires_grad_() for t in tensors]
    out = biased_attention(*inputs, encoding, backend=backend, **options)
    wanted = [*inputs, *(encoding.parameters() if encoding is not None else ())]
    grads = torch.autograd.grad(out, wanted, upstream.to(out.dtype))
    return [t.double() for t in (out.detach(), *grads)]


def worst(a, b): return max(((x - y).abs().max() / y.abs().max().clamp(min=1)).item() for x, y in zip(a, b))


def cases(smoke, dtype):
    "Encodings, lengths and masks: tensors, encoding, options, upstream gradient, and what it is called."
    heads, g = 4, torch.Generator().manual_seed(0)
    for length in (1, 37) if smoke else (1, 2, 137, 1025):
        pad = torch.arange(length, device=DEVICE) >= torch.tensor([[0], [length // 2]], device=DEVICE)
        masks = {'causal': {}, 'padded': dict(key_padding_mask=pad), 'window': dict(window=max(1, length // 3)), 'few queries': {}}
        for name in ('sandwich', 't5') if smoke else ('alibi', 'sandwich', 'window', 'rotary', 'kerple_log', 't5'):
            encoding = make_encoding(name, heads, 64*heads, **ALL[name]).to(DEVICE)
            for kind, options in masks.items():
                q_len = -(-length // 3) if kind=='few queries' else length
                x = [torch.randn(2, heads, n, 64, generator=g).to(DEVICE, dtype) for n in (q_len, length, length)]
                up = torch.randn(2, heads, q_len, 64, generator=g).to(DEVICE)
                yield x, encoding, options, up * pad[:, None, :, None] if kind=='padded' else up, f'{name}, {kind}, L={length}'


def right(smoke):
    "Every encoding, type, length and mask in every engine against float64: the largest error, in 16 bits over that of plain attention."
    rows = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        errors, usual = {b: (0.0, '') for b in available_backends(DEVICE) if b not in ('reference', 'auto')}, 0.0
        torch.compiler.reset()
        for x, encoding, options, up, what in cases(smoke, dtype):
            high = [t.double() for t in x]
            exact = run(high, copy.deepcopy(encoding).double(), options, 'reference', up)
            usual = max(usual, worst(run(x, None, options, 'materialized', up), run(high, None, options, 'reference', up)))
            for backend in errors:
                try: error = worst(run(x, encoding, options, backend, up), exact)
                except Exception:
                    traceback.print_exc()
                    error = torch.inf
                if not error <= errors[backend][0]: errors[backend] = error, what
        for backend, (error, what) in errors.items():
            if dtype==torch.float32: rows.append(row(f'{backend}, float32: largest error ({what})', error, most=1e-5, unit=''))
            else: rows.append(row(f"{backend}, {str(dtype)[6:]}: largest error over plain attention's ({what})", error / usual, most=2))
    return rows


# ---------------------------------------------------------------- what does a bias cost?

def attention_costs(smoke):
    "Forward and backward over PyTorch's causal attention without a bias, in bfloat16."
    heads, d, rows, dtype = (2, 16, [], torch.float32) if smoke else (12, 64, [], torch.bfloat16)
    for length in (32, 64) if smoke else (512, 1024, 2048, 4096, 8192):
        batch = 1 if smoke else 16384 // length
        inputs = [torch.randn(batch, heads, length, d, device=DEVICE, dtype=dtype, requires_grad=True) for _ in range(3)]
        up = torch.randn_like(inputs[0])
        def case(attention):
            attention(*inputs).backward(up)
            for t in inputs: t.grad = None
        plain = seconds(lambda: case(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)), 10)
        for name in ('sandwich', 'kerple_log', 't5', 'window'):
            encoding = make_encoding(name, heads, heads*d, **ALL[name]).to(DEVICE)
            for backend in ('auto', 'materialized') if name=='sandwich' and length <= 2048 else ('auto',):
                taken = seconds(lambda: case(lambda q, k, v: biased_attention(q, k, v, encoding, backend=backend)), 10)
                rows.append(row(f'{name}, {backend}, L={length}, over no bias', taken / plain))
    return rows


# ---------------------------------------------------------------- how fast is a model?

def step_time(config, batch, backend='auto', compiled=True, rounds=8):
    "Seconds of a training step: bfloat16 autocast, loss, backward, clipping, fused Adam."
    torch.compiler.reset()
    model = TransformerLM(config, backend=backend).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=True)
    tokens = torch.randint(config.vocab_size, (batch, config.train_len + 1), device=DEVICE)
    def loss():
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16): logits = model(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    for block in model.blocks if compiled and CUDA else (): block.compile()  # as a training does
    def step():
        loss().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return seconds(step, rounds)


def steps(smoke, minutes):
    "Step time of every encoding over Sandwich's, at 6 layers of 512."
    config = ModelConfig(64, 1, 2, 32, 32) if smoke else ModelConfig(8192, 6, 8, 512, 512)
    times, rows = {}, []
    for name in sorted(ALL, key=lambda n: n not in ('sandwich', 't5')):
        if not left(minutes, f'step of {name}'): continue
        spec = ModelConfig(config.vocab_size, config.n_layers, config.n_heads, config.d_model, config.train_len, name, ALL[name])
        times[name] = step_time(spec, 2 if smoke else 32, compiled=False)
    for name in times: rows.append(row(f'step of {name} over sandwich', times[name] / times['sandwich'], **({'most': 1.05} if name=='t5' else {})))
    return rows


def product_rate(n):
    "Multiplications and additions a second of a product of bfloat16 matrices."
    a, b = torch.randn(2, n, n, device=DEVICE, dtype=torch.bfloat16)
    return 2 * n**3 / seconds(lambda: a @ b, 10)


def paper_model(smoke, minutes):
    "Tokens a second and share of the card's dense bfloat16 rate for the paper's model, compiled."
    c = ModelConfig(64, 1, 2, 32, 32) if smoke else ModelConfig(50_257, 12, 12, 768, 512)
    batch, rate, rows = 2 if smoke else 32, product_rate(64 if smoke else 8192), []
    for name, backend, compiled in (('sandwich', 'auto', True), ('sandwich', 'sdpa', True), ('sandwich', 'auto', False), ('t5', 'auto', True)):
        if not left(minutes, f'paper model, {name}, {backend}, compiled={compiled}'): continue
        label = f"paper's model, {name}, {backend}, {'compiled' if compiled else 'not compiled'}"
        config = ModelConfig(c.vocab_size, c.n_layers, c.n_heads, c.d_model, c.train_len, name)
        try: taken = step_time(config, batch, backend, compiled)
        except Exception:
            traceback.print_exc()
            continue
        rate_of = batch * c.train_len / taken
        rows.append(row(f'{label}: thousand tokens a second', rate_of / 1000, unit=''))
        target = {'least': 0.5} if (name, backend, compiled)==('sandwich', 'auto', True) else {}
        rows.append(row(f"{label}: share of the card's matrix product rate", rate_of * c.token_flops / rate, unit='', **target))
    return rows + [row('matrix product, TFLOP/s', rate / 1e12, unit='')]


if __name__=='__main__':
    args = arguments(QUESTION)
    smoke = args.smoke or not CUDA
    if not CUDA and not args.smoke: print('no GPU here: smoke mode')
    args.smoke, rows = smoke, []
    warnings.simplefilter('once')
    if CUDA: torch.set_float32_matmul_precision('highest')
    torch._dynamo.config.recompile_limit = 64  # lengths and types that one attention kernel is compiled for
    parts = [(lambda: right(smoke), "correctness"), (lambda: attention_costs(smoke), "cost of a bias"),
             (lambda: paper_model(smoke, 5.0), "the paper's model"), (lambda: steps(smoke, 5.5), "steps")]
    for part, what in parts:
        if not left(5.5, what): break
        try: rows += part()
        except Exception: traceback.print_exc()
    finish('gpu', f"{QUESTION}: {torch.cuda.get_device_name() if CUDA else 'none'}", rows, args)
    assert rows, f'nothing was measured; see above ({HERE})'
