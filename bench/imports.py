"How long does the import take, over that of torch?"
from measure import arguments, finish, own_process, row
from statistics import median

QUESTION = 'Import in a fresh process'
IMPORT = '''
import json, sys, time
start = time.perf_counter()
__import__(sys.argv[1])
print(json.dumps(time.perf_counter() - start))
'''

if __name__=='__main__':
    args, ratios = arguments(QUESTION), []
    own_process(IMPORT, 'sandwich_repro')
    for _ in range(2 if args.smoke else 9): ratios.append(own_process(IMPORT, 'sandwich_repro') / own_process(IMPORT, 'torch'))
    finish('imports', QUESTION, [row('import sandwich_repro over import torch', median(ratios), most=1.15)], args)
