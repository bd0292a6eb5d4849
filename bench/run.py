"All benchmarks that need no GPU, one after the other; their tables land in bench/RESULTS.md."
import json
import subprocess
import sys
import time

from measure import HERE, machine, table

SCRIPTS = ('attention', 'memory', 'windows', 'last_token', 'training', 'imports', 'lengths')

if __name__=='__main__':
    start, parts = time.perf_counter(), []
    for name in SCRIPTS:
        print(f'{name} …', flush=True)
        result = subprocess.run([sys.executable, HERE / f'{name}.py', *sys.argv[1:]], capture_output=True, text=True)
        if result.returncode: sys.exit(f'{name} failed:\n{result.stderr}')
        print(result.stdout, flush=True)
        parts.append(result.stdout.strip())
    minutes = (time.perf_counter() - start) / 60
    gpu = HERE / 'results' / 'gpu.json'
    if gpu.exists():
        kept = json.loads(gpu.read_text(encoding='utf-8'))
        parts.append(table(kept['question'], kept['rows'], kept['machine']))
    notes = HERE / 'NOTES.md'
    parts.append(notes.read_text(encoding='utf-8').strip())
    head = f'# Benchmarks\n\nWritten by `make bench` in {minutes:.1f} minutes on: {machine()}. Every number is a ratio of medians of cases timed in turn in one process, unless it has a unit.'
    if '--smoke' not in sys.argv: (HERE / 'RESULTS.md').write_text('\n\n'.join([head, *parts]) + '\n', encoding='utf-8')
