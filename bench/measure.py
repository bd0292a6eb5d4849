"What all benchmarks share: cases timed in turn, ratios of medians, one table."
import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import torch  # noqa: E402


def arguments(question):
    "The command line of a benchmark, and as many threads as the machine has cores."
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument('--smoke', action='store_true', help='tiny sizes and two rounds: does it run?')
    parser.add_argument('--threads', type=int, default=len(os.sched_getaffinity(0)), help='threads of each process')
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    return args


def alternate(cases, rounds, warm=1):
    "Seconds of every case in every round, the cases taking turns: A B A B."
    seconds = {name: [] for name in cases}
    for r in range(-warm, rounds):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            if r >= 0: seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds, a, b):
    "Median of the rounds' ratios a/b: what disturbs a round disturbs both."
    return median(x / y for x, y in zip(seconds[a], seconds[b]))


def training(attention, inputs):
    "One forward and backward pass of a function of leaves, as a case."
    upstream = torch.randn_like(attention(*inputs).detach())
    def case():
        attention(*inputs).backward(upstream)
        for t in inputs: t.grad = None
    return case


def machine():
    "One line about where this ran."
    info = Path('/proc/cpuinfo').read_text().splitlines() if sys.platform=='linux' else []
    names = [line.split(':')[1].strip() for line in info if line.startswith('model name')]
    return f"{names[0] if names else platform.processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}"


def row(what, value, target='', least=None, most=None, unit='×'):
    "One line of a table: what was measured, and whether the target is reached (no target: None)."
    met = None if least is None and most is None else bool((least is None or value >= least) and (most is None or value <= most))
    return dict(what=what, value=float(value), unit=unit, target=target or (f'≥ {least}' if least is not None else f'≤ {most}' if most is not None else 'reported'), met=met)


def table(question, rows, where):
    "The rows as a table under their question."
    lines = [f"| {r['what']} | {r['value']:.3g}{r['unit']} | {r['target']} | {'' if r['met'] is None else 'yes' if r['met'] else '**no**'} |" for r in rows]
    return '\n'.join([f'### {question}', '', '| measured | value | to reach | reached |', '|---|---|---|---|', *lines, '', where])


def finish(name, question, rows, args, **more):
    "Print the table; outside smoke mode, where nothing is reached or missed, keep the numbers for the pages."
    if args.smoke: rows = [dict(r, met=None) for r in rows]
    print(table(question, rows, machine()))
    if args.smoke: return
    (HERE / 'results').mkdir(exist_ok=True)
    text = json.dumps(dict(question=question, machine=machine(), rows=rows, **more), indent=1, ensure_ascii=False)
    (HERE / 'results' / f'{name}.json').write_text(text + '\n', encoding='utf-8')


def own_process(code, *args):
    "What a fresh process prints as JSON."
    env = dict(os.environ, PYTHONPATH=str(HERE.parent), OMP_NUM_THREADS=str(torch.get_num_threads()))
    out = subprocess.run([sys.executable, '-c', code, *map(str, args)], env=env, capture_output=True, text=True)
    if out.returncode: raise RuntimeError(out.stderr)
    return json.loads(out.stdout)
