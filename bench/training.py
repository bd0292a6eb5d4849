"How fast is a training step, against other encodings, against peers, and against the machine's own matrix product?"
import importlib.util
from statistics import median

import torch
import torch.nn.functional as F
from measure import alternate, arguments, finish, ratio, row

from sandwich_repro import ModelConfig, TransformerLM

QUESTION = 'Training steps: forward, loss, backward, clipping, fused Adam, in float32'
SIZES = {'laptop': dict(layers=2, heads=8, width=128, vocab=1024, length=128, batch=16),
         '4 × 256': dict(layers=4, heads=4, width=256, vocab=4096, length=512, batch=8)}
SMOKE = {'smoke': dict(layers=1, heads=2, width=32, vocab=64, length=32, batch=2)}
PEERS = {'x-transformers, ALiBi, flash': ('alibi', 1.15), 'x-transformers, T5 bias': ('t5', 1.45), 'transformers, GPT-NeoX rotary': ('rotary', 1.12),
         'transformers, BLOOM ALiBi': ('alibi', 1.35), 'transformers, MPT ALiBi': ('alibi', 1.30)}


def x_transformers(s, **position):
    "A decoder of x-transformers of the same size."
    from x_transformers import Decoder, TransformerWrapper
    layers = Decoder(dim=s['width'], depth=s['layers'], heads=s['heads'], attn_dim_head=s['width'] // s['heads'], **position)
    return TransformerWrapper(num_tokens=s['vocab'], max_seq_len=s['length'], use_abs_pos_emb=False, attn_layers=layers)


def hugging_face(s, kind):
    "A causal model of transformers of the same size, and its logits."
    import transformers as t
    if kind=='neox':
        model = t.GPTNeoXForCausalLM(t.GPTNeoXConfig(vocab_size=s['vocab'], hidden_size=s['width'], num_hidden_layers=s['layers'], num_attention_heads=s['heads'],
            intermediate_size=4*s['width'], rotary_pct=1.0, use_parallel_residual=False, max_position_embeddings=s['length'], use_cache=False))
    elif kind=='bloom':
        model = t.BloomForCausalLM(t.BloomConfig(vocab_size=s['vocab'], hidden_size=s['width'], n_layer=s['layers'], n_head=s['heads'], use_cache=False))
    else:
        model = t.MptForCausalLM(t.MptConfig(vocab_size=s['vocab'], d_model=s['width'], n_layers=s['layers'], n_heads=s['heads'], max_seq_len=s['length'], use_cache=False))
    return model


def peers(s):
    "Name → model, for the peers that are installed."
    made = {}
    if importlib.util.find_spec('x_transformers'):
        made['x-transformers, ALiBi, flash'] = x_transformers(s, alibi_pos_bias=True, attn_flash=True)
        made['x-transformers, T5 bias'] = x_transformers(s, rel_pos_bias=True)
    if importlib.util.find_spec('transformers'):
        for name, kind in (('GPT-NeoX rotary', 'neox'), ('BLOOM ALiBi', 'bloom'), ('MPT ALiBi', 'mpt')): made[f'transformers, {name}'] = hugging_face(s, kind)
    return made


def loss(model, tokens):
    "Mean loss of the next token: ours as it trains, a peer's by PyTorch's cross-entropy."
    if isinstance(model, TransformerLM): return model(tokens[:, :-1], targets=tokens[:, 1:])
    logits = model(tokens[:, :-1])
    return F.cross_entropy(getattr(logits, 'logits', logits).flatten(0, 1), tokens[:, 1:].flatten())


def step(model, tokens):
    "One training step as a case."
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=True)
    model.train()
    def case():
        loss(model, tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return case


def product(n):
    "A product of square matrices as a case."
    a, b = torch.randn(2, n, n)
    return lambda: a @ b


PARTS = {'matrix products': ('mm', 'addmm', 'addmm_'), "attention's kernels": ('_scaled_dot_product_flash_attention_for_cpu', '_scaled_dot_product_flash_attention_for_cpu_backward'),
         'softmax of the loss': ('_log_softmax', 'exp_'), 'GELU': ('gelu', 'gelu_backward'), 'LayerNorm': ('native_layer_norm', 'native_layer_norm_backward'),
         'copies, turned queries, fresh zeros': ('copy_', 'flip', 'fill_', 'cat'), 'sums': ('add', 'add_', 'sum'), 'clipping and Adam': ('linalg_vector_norm', '_fused_adam_', 'mul_')}


def profiled(case, rounds):
    "Share of a step's processor time that its parts take, as rows."
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        for _ in range(rounds): case()
    own = {e.key.removeprefix('aten::'): e.self_cpu_time_total for e in seen.key_averages()}
    shares = {part: sum(own.get(name, 0) for name in names) / sum(own.values()) for part, names in PARTS.items()}
    return [row(f'of a sandwich step: {part}', 100 * share, unit=' %') for part, share in (shares | {'all else': 1 - sum(shares.values())}).items()]


if __name__=='__main__':
    args, rows = arguments(QUESTION), []
    for size, s in (SMOKE if args.smoke else SIZES).items():
        tokens = torch.randint(s['vocab'], (s['batch'], s['length'] + 1))
        names = ('sandwich', 'alibi', 'rotary', 'kerple_log', 't5')
        models = {n: TransformerLM(ModelConfig(s['vocab'], s['layers'], s['heads'], s['width'], s['length'], n)) for n in names}
        models['t5, written out'] = TransformerLM(models['t5'].config, backend='materialized')
        models['sandwich, written out'] = TransformerLM(models['sandwich'].config, backend='materialized')
        cases = {n: step(m, tokens) for n, m in (models | peers(s)).items()}
        n = 64 if args.smoke else 2048
        cases['matrix product'] = product(n)
        seconds = alternate(cases, 2 if args.smoke else 40 if size=='laptop' else 7)
        for learned in ('kerple_log', 't5'):
            rows.append(row(f'{size}: {learned} over sandwich', ratio(seconds, learned, 'sandwich'), **({'most': 1.05} if size=='laptop' else {})))
        rows.append(row(f'{size}: t5 over sandwich, masks written out (the paper: 1.10)', ratio(seconds, 't5, written out', 'sandwich, written out')))
        for peer, (ours, least) in PEERS.items():
            if peer in cases: rows.append(row(f'{size}: {peer}, over our {ours}', ratio(seconds, peer, ours), least=least))
        second, tokens_read = median(seconds['sandwich']), s['batch'] * s['length']
        rows.append(row(f'{size}: sandwich, thousand tokens a second', tokens_read / second / 1000, unit=''))
        rows.append(row(f"{size}: share of the machine's matrix product rate", tokens_read * models['sandwich'].config.token_flops / (2 * n**3) * ratio(seconds, 'matrix product', 'sandwich'), **({} if size=='laptop' else {'least': 0.7}), unit=''))
        if size!='laptop': rows += [dict(r, what=f"{size}: {r['what']}") for r in profiled(cases['sandwich'], 2)]
    finish('training', QUESTION, rows, args)
