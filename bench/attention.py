"What does a bias cost? Forward and backward of `biased_attention` over unbiased causal attention of PyTorch."
from statistics import median

import torch
import torch.nn.functional as F
from measure import alternate, arguments, finish, ratio, row, training

from sandwich_repro import biased_attention, make_encoding

QUESTION = 'Forward and backward of attention with a bias, over unbiased causal attention of PyTorch (12 heads of 64)'
FIXED, LEARNED = ('alibi', 'sandwich', 'smoothed_sandwich'), ('kerple_log', 't5', 'learned_sandwich')


def times(length, heads, rounds):
    "Seconds of every encoding, of plain attention, and of a written-out mask."
    packed = torch.randn(1, length, 3, heads, 64)
    inputs = [t.transpose(1, 2).detach().requires_grad_() for t in packed.unbind(2)]
    encodings = {name: make_encoding(name, heads, 64*heads) for name in FIXED + LEARNED}
    cases = {'plain': training(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), inputs)}
    for name, encoding in encodings.items():
        cases[name] = training(lambda q, k, v, e=encoding: biased_attention(q, k, v, e), inputs)
    for name in ('sandwich', 't5'):
        cases[f'{name}, written out'] = training(lambda q, k, v, e=encodings[name]: biased_attention(q, k, v, e, backend='materialized'), inputs)
    return alternate(cases, rounds)


def engines(lengths, heads, rounds):
    "Median seconds of the engines with Sandwich, and of no bias, at several lengths."
    found = {}
    for length in lengths:
        inputs, encoding = [torch.randn(1, heads, length, 64, requires_grad=True) for _ in range(3)], make_encoding('sandwich', heads, 64*heads)
        cases = {b: training(lambda q, k, v, b=b: biased_attention(q, k, v, encoding, backend=b), inputs) for b in ('reference', 'materialized', 'sdpa')}
        cases['no bias'] = training(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), inputs)
        found[length] = {name: median(s) for name, s in alternate(cases, rounds).items()}
    return found


if __name__=='__main__':
    args, rows, lengths = arguments(QUESTION), [], {}
    for length, most, rounds in ((64, 1.05, 2), (200, 1.20, 2)) if args.smoke else ((1024, 1.05, 25), (2048, 1.20, 9)):
        seconds = lengths[length] = times(length, 2 if args.smoke else 12, rounds)
        for name in FIXED: rows.append(row(f'{name}, L={length}, over no bias', ratio(seconds, name, 'plain'), most=most))
        for name in LEARNED: rows.append(row(f'{name}, L={length}, over sandwich', ratio(seconds, name, 'sandwich'), most=1.25))
        for name in ('sandwich', 't5'):
            rows.append(row(f'{name} with the mask written out, L={length}, over no bias', ratio(seconds, f'{name}, written out', 'plain')))
    seconds = engines((32, 64) if args.smoke else (64, 128, 256, 512, 1024, 2048), 4, 2 if args.smoke else 5)
    finish('attention', QUESTION, rows, args, engines=seconds)
