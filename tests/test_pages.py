"The pages of the paper: every claim has its verdict on one of them, and none of them trains."
import json
import re

from processes import ROOT

from sandwich_repro.claims import CLAIMS

PAGES = {p.stem: '\n'.join(''.join(c['source']) for c in json.loads(p.read_text(encoding='utf-8'))['cells'] if c['cell_type']=='code')
         for p in sorted((ROOT/'nbs'/'repro').glob('*.ipynb'))}


def claims(function):
    "Claims that the pages name in calls of a function, in order."
    calls = [call for code in PAGES.values() for call in re.findall(rf'{function}\((.*)\)', code)]
    return [int(n) for call in calls for n in (range(1, 11) if 'range(1, 11)' in call else re.findall(r'"C(\d+)"', call))]


def test_every_claim_has_its_verdict_on_one_page():
    assert sorted(claims('verdict_text'))==sorted(int(c.id[1:]) for c in CLAIMS)


def test_every_claim_is_stated_before_it_is_judged():
    assert sorted(claims('claims_text'))==sorted(claims('verdict_text'))


def test_pages_only_read():
    makes = ('experiments', 'train', 'model', 'corpus')
    assert [(name, m) for name, code in PAGES.items() for m in makes if re.search(rf'from sandwich_repro\.{m}\b', code)]==[]
