"How much memory does a bias need? Its table against the written-out mask; peak of a forward pass at 16,384 tokens."
from measure import arguments, finish, own_process, row

from sandwich_repro import make_encoding
from sandwich_repro.masks import plan_attention

QUESTION = 'Memory of a bias (12 heads of 64)'
PEAK = r'''
import json, re, sys, torch
from pathlib import Path
from sandwich_repro import biased_attention, make_encoding
length, heads, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
now = Path('/proc/self')
resident = lambda kind: 1024 * int(re.search(kind + r':\s+(\d+)', (now / 'status').read_text())[1])
q, k, v = torch.randn(3, 1, heads, length, 64)
encoding = make_encoding(name, heads, 64*heads)
with torch.no_grad():
    biased_attention(q[:, :, :300], k[:, :, :300], v[:, :, :300], encoding)
    before = resident('VmRSS')
    (now / 'clear_refs').write_text('5')  # the peak starts anew
    out = biased_attention(q, k, v, encoding)
print(json.dumps(resident('VmHWM') - before - out.nbytes))
'''

if __name__=='__main__':
    args, rows = arguments(QUESTION), []
    length, long, heads = (128, 512, 2) if args.smoke else (2048, 16384, 12)
    for name in ('sandwich', 't5'):
        encoding = make_encoding(name, heads, 64*heads)
        table = plan_attention(encoding, length).table.untyped_storage().nbytes()
        mask = plan_attention(encoding, length, backend='materialized').mask.untyped_storage().nbytes()
        rows.append(row(f'{name}: table over written-out mask, L={length}', 100 * table / mask, most=1, target='≤ 1 %', unit=' %'))
        rows.append(row(f'{name}: peak of a forward pass above q, k, v, o, L={long}', own_process(PEAK, long, heads, name) / 2**30, most=0.5, target='≤ 0.5 GB', unit=' GB'))
    finish('memory', QUESTION, rows, args)
