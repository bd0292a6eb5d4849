"On one GPU: train and measure the paper's models at scale `gpu`, a few minutes a call; what is finished is skipped, what was interrupted goes on."
import argparse
import importlib.util
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

BORN = time.perf_counter()
ROOT = Path(__file__).resolve().parents[1]
CARRIED = ROOT / 'carried'
ORDER = ('sandwich', 'alibi', 'rotary', 'sinusoidal', 'smoothed_sandwich', 'kerple_log', 't5', 'none')  # of Table 3: C18 and C19 need the first two
PEAK, SHARE = {'bfloat16': 989e12, 'TF32': 494e12}, .3  # an H100's products a second, and the share of them that is assumed
GRACE = 25  # seconds from the interrupt to the end of the process, for a step that is being compiled

sys.path[:0] = [str(ROOT), str(ROOT / 'bench')]


def arguments():
    "The command line."
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--corpus', default='code', help='a corpus by name; its tokens must have been carried here')
    parser.add_argument('--out', type=Path, help='output folder (results): OUT/gpu/*.json, and OUT/gpu/checkpoints, from which a later call goes on')
    parser.add_argument('--minutes', type=float, default=5.5, help=f'when to interrupt and save; the process ends at most {GRACE} s later')
    parser.add_argument('--carry', action='store_true', help='only tokenize the corpus into carried/, where the corpus is')
    parser.add_argument('--dry-run', action='store_true', help='only print the runs, the memory and the time')
    parser.add_argument('--smoke', action='store_true', help='four tiny models on the CPU, in a temporary folder: does it run?')
    return parser.parse_args()


def say(text):
    "A line with the minutes since the start."
    print(f'[{(time.perf_counter() - BORN) / 60:.1f} min] {text}', flush=True)


@contextmanager
def stopped_after(seconds, grace=GRACE):
    "Ctrl-C after some seconds, on which a training saves; and the end of the process if that was not heeded."
    def end():
        say('the step did not end in time: the next call goes on from the last checkpoint')
        os._exit(0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born deaf to it
    timers = [threading.Timer(max(seconds, 0), os.kill, (os.getpid(), signal.SIGINT)), threading.Timer(max(seconds, 0) + grace, end)]
    for t in timers: t.daemon = True
    for t in timers: t.start()
    try: yield
    finally:
        for t in timers: t.cancel()
        signal.signal(signal.SIGINT, before)


# ---------------------------------------------------------------- what, and how long?

def runs(scale, corpus, smoke):
    "Table 3 on one corpus in our order, then Table 1."
    from sandwich_repro.experiments import grid_specs
    scale = replace(scale, corpora=(corpus,))
    third = sorted(grid_specs(['table3'], scale), key=lambda s: ORDER.index(s.encoding) if s.encoding in ORDER else len(ORDER))
    specs = third + grid_specs(['table1'], scale)
    learned = next(s for s in third if s.encoding=='t5')
    return [replace(s, eval=replace(s.eval, block_tokens=512)) for s in (specs[0], specs[2], learned, specs[-1])] if smoke else specs


def training_work(spec):
    "Multiplications and additions of a training."
    return spec.train.steps * spec.train.batch_size * spec.train_len * spec.model_config.token_flops


def measuring_work(spec):
    "Those of the forward passes at every length, and of three passes a gradient."
    at = lambda n: n * replace(spec.model_config, train_len=n).token_flops / 3  # noqa: E731
    return spec.eval.n_segments * sum(map(at, spec.eval.lengths)) + 3 * spec.eval.erf_segments * at(spec.eval.erf_len)


def training_gigabytes(spec, parameters):
    "Weights, gradients and two moments in float32; what a step keeps of each token; logits and their gradient."
    c = spec.model_config
    return (16 * parameters + spec.train.batch_size * c.train_len * (34 * c.n_layers * c.d_model + 16 * c.vocab_size)) / 1e9


def plan(specs, out, minutes):
    "Print what there is to do and what it takes."
    from sandwich_repro.corpus import spec_tokens
    from sandwich_repro.experiments import missing
    from sandwich_repro.model import TransformerLM
    first, todo, facts = specs[0], missing(specs, out), spec_tokens(specs[0]).facts
    parameters, read = sum(p.numel() for p in TransformerLM(first.model_config).parameters()), first.train.batch_size * first.train_len
    trained, measured = training_work(first) / PEAK['bfloat16'] / SHARE, measuring_work(first) / PEAK['TF32'] / SHARE
    print(f"{len(todo)} of {len(specs)} runs to do on {first.corpus}: {parameters / 1e6:.3g} M parameters, L_tr={first.train_len}, measured up to L={max(first.eval.lengths)}")
    print(f"text: {facts['train_tokens'] / 1e6:.3g} M tokens ({facts['tokenizer']}) to train on, {facts['heldout_tokens'] / 1e6:.2g} M held out; "
          f"{first.train.steps} steps of {read} tokens read it {first.train.steps * read / facts['train_tokens']:.1f} times")
    print(f"time of a run: {trained:.3g} s to train, {measured:.3g} s to measure, if {SHARE:.0%} of an H100's rates are reached "
          f"({PEAK['bfloat16'] / 1e12:.0f} TFLOP/s in bfloat16, {PEAK['TF32'] / 1e12:.0f} in TF32), and what compiling takes")
    print(f"memory to train: about {training_gigabytes(first, parameters):.2g} GB; on disk, a checkpoint {12 * parameters / 1e6:.3g} MB in {out / first.scale / 'checkpoints'}, "
          f"a result {first.eval.n_segments * len(first.eval.lengths) * 9 / 1e6:.2g} MB in {out / first.scale}; interrupted after {minutes:g} minutes")
    return todo


# ---------------------------------------------------------------- the runs

class Progress:
    "Prints how far a run is, every ten seconds at most."
    def __init__(self, name): self.name, self.last = name, 0.
    def __call__(self, share):
        if time.perf_counter() - self.last < 10: return
        self.last = time.perf_counter()
        say(f'{self.name}: {share:.0%}')


def learned_gradients(model, call, tokens):
    "What a training step gives the encoding's parameters; zeros where it gives nothing."
    import torch
    model.zero_grad(set_to_none=True)
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16): logits = call(tokens[:, :-1])
    torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten()).backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.encodings.parameters()]


def compiled_blocks(model):
    "The model, its blocks compiled as in a training."
    for block in model.blocks: block.compile()
    return model


def learns(spec, prepared, device='cuda'):
    "Whether a training step gives an encoding the gradient of plain attention: some versions of PyTorch drop it in silence."
    import torch
    from sandwich_repro.model import TransformerLM
    model = TransformerLM(replace(spec.model_config, n_layers=1), backend='materialized').to(device)
    if not list(model.encodings.parameters()): return True
    tokens = torch.randint(spec.vocab_size, (spec.train.batch_size, spec.train_len + 1), device=device)
    wanted = learned_gradients(model, model, tokens)
    model.backend = 'auto'
    found = learned_gradients(model, prepared(model), tokens)
    return all((f - w).norm() < .5 * w.norm() for f, w in zip(found, wanted))  # a dropped one is off by 1, bfloat16 by hundredths


def attempt(spec, out, gpu):
    "One run; in a slower way where a faster one fails, also after the training: that is not done again."
    import torch
    from sandwich_repro.engines import _failed
    from sandwich_repro.experiments import run
    if not gpu: return run(spec, out, Progress(spec.label), progress=False)
    for compiled in ('blocks', 'attention', 'nothing'):
        if compiled=='nothing': _failed.add('cuda')  # so that attention asks for no compiler either
        try:
            if not learns(spec, compiled_blocks if compiled=='blocks' else lambda model: model): raise RuntimeError('the step drops the gradient of the encoding')
            return run(spec, out, Progress(spec.label), progress=False, compile=compiled=='blocks')
        except (ValueError, torch.OutOfMemoryError): raise
        except Exception as error:
            if compiled=='nothing': raise
            say(f'{spec.label}: failed with {compiled} compiled, trying a slower way ({type(error).__name__}: {str(error)[:200]})')
        torch.compiler.reset()  # out of the handler, whose traceback holds the model's memory


def work(todo, out, gpu, seconds):
    "Run after run until the time is over; returns what failed."
    failed, left = [], lambda: seconds - (time.perf_counter() - BORN)
    try:
        with stopped_after(left()):
            for spec in todo:
                if left() < min(45, .2 * seconds): break  # would hardly begin
                start = time.perf_counter()
                try: attempt(spec, out, gpu)
                except Exception:
                    traceback.print_exc()
                    failed.append(spec)
                else: say(f'{spec.label}: done in {time.perf_counter() - start:.0f} s')
    except KeyboardInterrupt: say('interrupted: what was trained is saved')
    return failed


# ---------------------------------------------------------------- what came out

def table(rows):
    "Rows of texts in columns."
    names = list(dict.fromkeys(k for row in rows for k in row))
    lines = [names, *([str(row.get(n, '')) for n in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return '\n'.join('  '.join(text.ljust(w) for text, w in zip(line, widths)).rstrip() for line in lines)


def held_out_row(result):
    "How training went: where the held-out loss was lowest, and where it ended."
    val = result.training['loss']['val']
    step, lowest = min(val, key=lambda p: p[1]) if val else (0, float('nan'))
    return {'model': result.spec.label, 'held-out loss, last': f'{val[-1][1] if val else float("nan"):.3f}', 'lowest': f'{lowest:.3f}', 'at step': step,
            'of': result.spec.train.steps, 'train loss, last': f"{result.training['loss']['train'][-1][1]:.3f}",
            'thousand tokens/s': f"{result.training['tokens_per_second'] / 1e3:.0f}", 'peak GB': f"{result.training['peak_memory'] / 1e3:.1f}"}


def show(specs, out):
    "Perplexity at L_tr, what longer contexts change, and how training went."
    from sandwich_repro.report import summary_rows
    from sandwich_repro.results import load_result, result_path
    results = [load_result(path) for s in specs if (path := result_path(s, out)).exists()]
    if not results: return
    print(f"\nlast-token loss in nats against L_tr, ± half of a 95 % interval (below zero: a gain)\n{table(summary_rows(results, results[0].spec.scale))}")
    trained = {r.spec.label: held_out_row(r) for r in results if not r.diverged}
    print(f"\n{table(list(trained.values()))}")


# ---------------------------------------------------------------- the command

def check(args):
    "The message of what is missing here, or ''."
    lacking = [name for name in ('torch', 'lightning', 'tokenizers', 'matplotlib', 'jinja2', 'tqdm') if importlib.util.find_spec(name) is None]
    if lacking: return f'{sys.executable} lacks {", ".join(lacking)}: name another python with GPU_PYTHON=...'
    import torch
    if args.smoke or args.carry or args.dry_run or torch.cuda.is_available(): return ''
    return 'no GPU here: copy this folder, carried/ included, to a machine that has one and run `make gpu` there; `tools/gpu.py --smoke` tries the path on a CPU'


def prepare(args, scale):
    "Where the tokens are; in smoke mode they are made first."
    from sandwich_repro.corpus import carry_tokens
    folder = os.environ.get('SANDWICH_TOKENS') or str(CARRIED)
    if args.smoke: folder = tempfile.mkdtemp()
    if args.smoke or args.carry:
        there = carry_tokens(scale.spec('none', corpus=args.corpus), folder)
        if args.carry: print(f"{there}: {sum(p.stat().st_size for p in there.iterdir()) / 1e6:.1f} MB")
    os.environ['SANDWICH_TOKENS'] = folder


def main():
    "Prepare, plan, run, show."
    args = arguments()
    if args.smoke: os.environ['CUDA_VISIBLE_DEVICES'] = ''
    if message := check(args): return print(message, file=sys.stderr) or 2
    import plain_python  # noqa: F401  -- before the package, which annotates with jaxtyping
    import torch
    from sandwich_repro.config import SCALES
    from sandwich_repro.experiments import missing
    scale = SCALES['smoke' if args.smoke else 'gpu']
    torch.set_float32_matmul_precision('high')  # what is measured in float32 multiplies in TF32
    torch._dynamo.config.recompile_limit = 64  # lengths and types that one attention kernel is compiled for
    logging.getLogger('torch._dynamo').setLevel(logging.ERROR)
    prepare(args, scale)
    if args.carry: return 0
    out = args.out or Path(tempfile.mkdtemp() if args.smoke else 'results')
    specs = runs(scale, args.corpus, args.smoke)
    todo = plan(specs, out, args.minutes)
    failed = [] if args.dry_run else work(todo, out, torch.cuda.is_available(), 60 * args.minutes)
    show(specs, out)
    left = len(missing(specs, out))
    print(f"\n{len(specs) - left} of {len(specs)} runs finished" + (f', {len(failed)} failed' if failed else '') + ('; the same command goes on from here' if left else ''))
    return int(bool(failed))


if __name__ == '__main__':
    try: code = main()
    except ValueError as error: code = print(' '.join(str(error).split()), file=sys.stderr) or 2
    sys.exit(code)
