"Is a window linear in the length? Forward and backward against full causal attention, and against itself at a quarter."
import torch
import torch.nn.functional as F
from measure import alternate, arguments, finish, ratio, row, training

from sandwich_repro import biased_attention, make_encoding

QUESTION = 'Forward and backward of attention in a window of 128 (12 heads of 64)'

if __name__=='__main__':
    args = arguments(QUESTION)
    short, middle, long, heads, rounds = (128, 256, 512, 2, 2) if args.smoke else (4096, 8192, 16384, 12, 9)
    encoding = make_encoding('window', heads, 64*heads, window=32 if args.smoke else 128)
    inputs = {n: [t.transpose(1, 2).detach().requires_grad_() for t in torch.randn(1, n, 3, heads, 64).unbind(2)] for n in (short, middle, long)}
    windowed = lambda q, k, v: biased_attention(q, k, v, encoding)  # noqa: E731
    cases = {n: training(windowed, inputs[n]) for n in inputs}
    seconds = alternate(cases, rounds)
    cases = {'window': cases[middle], 'full': training(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), inputs[middle])}
    against = alternate(cases, rounds)
    rows = [row(f'full causal attention over the window, L={middle}', ratio(against, 'full', 'window'), least=8),
            row(f'the window at L={long} over L={short}', ratio(seconds, long, short), most=4.6)]
    finish('windows', QUESTION, rows, args)
