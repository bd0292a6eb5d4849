"The judges on two made-up worlds: one in which the paper is right, one in which it is wrong."
from dataclasses import replace

import numpy as np
import pytest

from sandwich_repro.claims import CLAIMS, check_claims
from sandwich_repro.config import SCALES, vary
from sandwich_repro.evidence import Missing, evidence_for
from sandwich_repro.experiments import grid_specs
from sandwich_repro.report import summary_rows
from sandwich_repro.results import RunResult
from sandwich_repro.tables import model_rows

SCALE = SCALES['smoke']
N = SCALE.train_len
FORMULAS = {'C14', 'C16', 'C24'}  # about formulas alone: the same in every world


def curve(erf, share, jump=0):
    "A cumulative gradient that reaches 0.99 at `erf` tokens and `share` at L_tr, straight in between; with a jump at a position"
    c = np.interp(np.arange(1, 4*N), [0, N, max(erf, N+1), 4*N], [0, share, .995, 1.]) if erf>N else np.interp(np.arange(1, 4*N), [0, erf, 4*N], [0, .995, 1.])
    s = np.diff(c, prepend=0.)
    if jump: s[4*N-1-jump] = 10*s.max()
    return np.cumsum(s)/s.sum()


def made_up(spec, level, rises, erf, share=.9, jump=False, blocks=0., seconds=1.):
    "A result with the wanted loss at L_tr, rise by multiple of L_tr, receptive field, and fall over blocks"
    noise = .1*(np.arange(24)%3)
    nll = np.stack([level+noise+np.interp(n/spec.train_len, *rises) for n in spec.eval.lengths], axis=1)
    return RunResult(spec, {}, dict(status='finished', seconds=1., step_cases=dict(materialized=seconds, sandwich=1.)), nll=nll, documents=np.arange(24)//2,
                     erf=erf, erf_interval=(erf, erf), cumulative=curve(erf, share, jump*spec.train_len), cumulative_spread=np.zeros(4*N), non_overlapping={str(n): np.exp(level-blocks*np.log2(n/N)) for n in spec.eval.lengths})


LEVEL, EXPLODES, LITTLE = ([1, 16], [0, 0]), ([1, 2, 16], [0, .5, .9]), ([1, 2, 4, 16], [0, .03, .06, .06])
ERFS = {'alibi Δ=-3': 1.5, 'window w=40': .3, 'window w=80': .5, 'window w=100': .9, 'window w=120': 1.5, 'window w=160': 2, 'window w=240': 2.5, 'window w=320': 3, 'window w=480': 3.5,
        'alibi h=0': .1, 'alibi h=2': .2, 'alibi h=4': .5, 'alibi h=6': 2, 'alibi h=8': 3}


def as_in_the_paper(spec):
    label, long = spec.label, spec.train_len>N
    erf = int(ERFS.get(label, 3.9)*N)
    if label=='alibi Δ=-3': return made_up(spec, 2.05, ([1, 2, 16], [0, .03, .03]), erf)
    if label in ('alibi Δ=0', 'alibi Δ=2', 'alibi Δ=4'): return made_up(spec, 2., LITTLE, erf, blocks=.05)
    if label.startswith(('alibi', 'window')):
        level = 2.2 if label in ('window w=40', 'alibi h=0') else 2.1
        return made_up(spec, level, LEVEL if erf<=N or long else EXPLODES, erf)
    if label in ('sinusoidal', 'rotary'): return made_up(spec, 2., EXPLODES, erf, jump=label=='sinusoidal')
    better = .03*(label in ('kerple_log', 't5'))
    return made_up(spec, 1.99-better+.1*('d̄' in label), ([1, 4, 16], [0, -.05, .02]), erf, .6, seconds=1+.1*(label in ('kerple_log', 't5')))


def upside_down(spec):
    label = spec.label
    erf = int((4-ERFS.get(label, 3.))*N)
    if 'sandwich' in label or label in ('kerple_log', 't5'): return made_up(spec, 2.2+.2*(label in ('kerple_log', 't5')), LEVEL, 3*N//4 if label!='t5' else 3*N, seconds=.5)
    if label in ('sinusoidal', 'rotary', 'alibi Δ=6', 'alibi Δ=8', 'alibi Δ=0', 'alibi Δ=2', 'alibi Δ=4', 'alibi h=8'): return made_up(spec, 1.9, LEVEL, N//2)
    return made_up(spec, 1.9+.1*spec.encoding_options.get('window', 0)/N, ([1, 2, 4, 8, 16], [0, .03, .05, .06, .09]), erf)


def verdicts(world, seeds=(0,)):
    results = [world(spec) for spec in grid_specs(['all'], SCALE, seeds)]
    return {v.claim: v for v in check_claims(results, SCALE.name)}


@pytest.mark.parametrize('seeds', [(0,), (0, 1, 2)])
def test_all_claims_hold_where_the_paper_is_right(seeds):
    found = verdicts(as_in_the_paper, seeds)
    assert {c: v.evidence for c, v in found.items() if v.outcome!='held'}=={}


@pytest.mark.parametrize('seeds', [(0,), (0, 1, 2)])
def test_no_claim_holds_upside_down(seeds):
    found = verdicts(upside_down, seeds)
    assert {c: v.evidence for c, v in found.items() if v.outcome!='not reproduced' and c not in FORMULAS}=={}


def test_several_seeds_are_the_unit_of_replication():
    "Seeds that disagree make a claim inconclusive, however many segments each has"
    results = [as_in_the_paper(spec) for spec in grid_specs(['table3'], SCALE, (0, 1, 2))]
    results = [replace(r, nll=np.asarray(r.nll)+(.5*(np.asarray(r.spec.eval.lengths)>N) if r.spec.seed==1 else 0)) if r.spec.label=='sandwich' else r for r in results]
    assert {v.claim: v.outcome for v in check_claims(results, SCALE.name)}['C19']=='inconclusive'


def test_more_segments_are_not_a_better_model():
    "Text that is easier to predict, of which some models were given more, moves no verdict and no comparison"
    results = [as_in_the_paper(spec) for spec in grid_specs(['all'], SCALE)]
    easier = [replace(r, nll=np.asarray(r.nll)-.2*(r.spec.eval.n_segments!=SCALE.n_segments)) for r in results]
    plain, moved = ({v.claim: v.outcome for v in check_claims(found, SCALE.name)} for found in (results, easier))
    assert plain==moved
    labels = [f'alibi Δ={d}' for d in (-3, 0, 2, 4, 6, 8)]
    tables = [model_rows(evidence_for(found, SCALE.name), labels) for found in (results, easier)]
    assert tables[0]==tables[1]


@pytest.mark.parametrize('claim', CLAIMS, ids=lambda c: c.id)
def test_a_claim_without_its_runs_names_the_command(claim):
    verdict, = check_claims([], SCALE.name, [claim])
    if not claim.grids: assert verdict.outcome!='not tested at this scale'
    else: assert verdict.outcome=='not tested at this scale' and f"sandwich-repro reproduce {' '.join(claim.grids)} --scale smoke" in verdict.evidence


def test_models_far_behind_the_best_are_named():
    results = [as_in_the_paper(s) for s in grid_specs(['default'], SCALE)]
    behind = [replace(r, nll=np.asarray(r.nll)+1) if r.spec.label=='rotary' else r for r in results]
    verdict, = check_claims(behind, SCALE.name, [c for c in CLAIMS if c.id=='C12'])
    assert 'more than 0.3 nats above the best at L_tr: rotary' in verdict.evidence


@pytest.mark.parametrize('lengths', [(N, 2*N), (N, 3*N+1), (N//2, N), (N//4, N, 16*N)])
def test_runs_at_other_lengths_alone_are_judged_as_far_as_they_go(lengths):
    "No grid run of the same models beside them: claims that need a length say so, and nothing crashes"
    specs = [replace(SCALE.spec(*a, **b), eval=replace(SCALE.spec('none').eval, lengths=lengths)) for a, b in ((('alibi',), {}), (('sandwich',), {}), (('window',), dict(window=40)), (('kerple_log',), {}), (('rotary',), {}))]
    results = [as_in_the_paper(s) for s in specs]
    found = {v.claim: v for v in check_claims(results, SCALE.name)}
    if lengths[-1]==N: assert 'not evaluated beyond' in found['C1'].evidence and found['C1'].outcome=='not tested at this scale'
    assert len(summary_rows(results, SCALE.name))==len(results)
    mixed = [as_in_the_paper(SCALE.spec('sandwich')), as_in_the_paper(specs[3])]
    assert {v.claim for v in check_claims(mixed, SCALE.name)}=={c.id for c in CLAIMS}


@pytest.mark.parametrize('train_len', [49, 98, 103])
def test_lengths_that_floats_do_not_hit_are_found(train_len):
    assert int(64/49*49)!=64 or train_len!=49                            # why lengths are rounded
    spec = vary(SCALES['quick'].spec('alibi'), train_len=train_len)
    nll = np.tile(np.arange(len(spec.eval.lengths), dtype=float), (24, 1))
    result = replace(made_up(SCALE.spec('alibi'), 2., LEVEL, N), spec=spec, nll=nll)
    e = evidence_for([result], 'quick')
    home = spec.eval.lengths.index(train_len)
    assert [r.mean for r in e.rises('alibi Δ=0', train_len=train_len).values()]==[i-home for i in range(home+1, len(spec.eval.lengths))]


def test_two_models_under_one_name_are_not_seeds_of_one():
    first = SCALE.spec('sandwich')
    other = replace(first, encoding='alibi', seed=1)                    # the label stays
    e = evidence_for([as_in_the_paper(first), as_in_the_paper(other)], SCALE.name)
    with pytest.raises(Missing, match='different models are called sandwich'): e.runs('sandwich')
    rows = summary_rows([as_in_the_paper(first), as_in_the_paper(other)], SCALE.name)
    assert 'different models' in rows[0]['seeds × N']


def test_losses_of_different_texts_are_not_paired():
    ours, theirs = as_in_the_paper(SCALE.spec('sandwich')), as_in_the_paper(SCALE.spec('alibi'))
    same = evidence_for([replace(r, corpus=dict(sha256='a')) for r in (ours, theirs)], SCALE.name)
    assert same.gap('sandwich', 'alibi Δ=0').n==24
    mixed = evidence_for([replace(ours, corpus=dict(sha256='a')), replace(theirs, corpus=dict(sha256='b'))], SCALE.name)
    with pytest.raises(Missing, match='on the same segments'): mixed.gap('sandwich', 'alibi Δ=0')


def test_one_window_that_is_not_level_decides_against_c2():
    explodes = replace(as_in_the_paper(SCALE.spec('window', window=40)), nll=as_in_the_paper(SCALE.spec('window', window=320)).nll)
    assert {v.claim: v.outcome for v in check_claims([explodes], SCALE.name)}['C2']=='not reproduced'


def test_sandwich_alone_on_a_second_corpus_takes_no_verdict_away():
    results = [as_in_the_paper(SCALE.spec(name)) for name in ('sandwich', 'alibi', 'sinusoidal', 'rotary')]
    before = {v.claim: v.outcome for v in check_claims(results, SCALE.name)}['C18']
    after = check_claims([*results, as_in_the_paper(SCALE.spec('sandwich', corpus='math'))], SCALE.name)
    assert before=='held' and {v.claim: v.outcome for v in after}['C18']=='held'
