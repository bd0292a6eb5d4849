"How does the cost grow with the length? Training and last-token evaluation from 256 to 8,192 tokens, slopes in log-log."
from statistics import median

import numpy as np
import torch
from measure import HERE, alternate, arguments, finish, row

from sandwich_repro import ModelConfig, TransformerLM

QUESTION = 'Cost against length (2 layers of 128, 4 heads, one text)'
ENCODINGS = {'rotary': {}, 'sandwich': {}, 't5': {}, 'window': {'window': 64}}


def costs(name, options, length, rounds):
    "Seconds of a training step without the optimizer, and of a last-token evaluation."
    model = TransformerLM(ModelConfig(256, 2, 4, 128, 512, name, options))
    tokens = torch.randint(256, (1, length + 1))
    def train():
        model(tokens[:, :-1], targets=tokens[:, 1:]).backward()
        model.zero_grad()
    @torch.inference_mode()
    def evaluate(): model(tokens[:, :-1], last_only=True)
    return {what: median(s) for what, s in alternate({'training': train, 'evaluation': evaluate}, rounds).items()}


def figure(lengths, seconds, path):
    "Log-log curves, one panel for training, one for evaluation."
    import matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    from sandwich_repro.plot import encoding_color
    axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout='constrained')[1]
    for ax, what in zip(axes, ('training', 'evaluation')):
        for name in ENCODINGS: ax.plot(lengths, [seconds[name][n][what] for n in lengths], 'o-', label=name, color=encoding_color(name))
        ax.set(xscale='log', yscale='log', title=what, xlabel='length (tokens)')
    axes[0].set_ylabel('seconds')
    axes[0].legend()
    plt.savefig(path, dpi=150, metadata={'Software': None})


if __name__=='__main__':
    args = arguments(QUESTION)
    lengths, rounds = ([32, 64], 2) if args.smoke else ([256, 512, 1024, 2048, 4096, 8192], 5)
    seconds = {name: {n: costs(name, options, n, rounds) for n in lengths} for name, options in ENCODINGS.items()}
    slope = lambda name, what: np.polyfit(np.log(lengths[-3:]), np.log([seconds[name][n][what] for n in lengths[-3:]]), 1)[0]  # noqa: E731
    rows = [row(f'{name}, {what}: slope over the three longest', slope(name, what), unit='') for name in ENCODINGS for what in ('training', 'evaluation')]
    if not args.smoke: figure(lengths, seconds, HERE / 'results' / 'lengths.png')
    finish('lengths', QUESTION, rows, args, lengths=lengths, seconds=seconds)
