"The judges on two made-up worlds: one in which the paper is right, one in which it is wrong."
from dataclasses import replace

import numpy as np
import pytest

from sandwich_repro.claims import CLAIMS, check_claims
from sandwich_repro.config import SCALES
from sandwich_repro.evidence import evidence_for
from sandwich_repro.experiments import grid_specs
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


LEVEL, EXPLODES, LITTLE = ([1, 16], [0, 0]), ([1, 2, 16], [0, .5, .5]), ([1, 2, 4, 16], [0, .03, .06, .06])
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


def test_models_on_the_first_plateau_are_named():
    results = [as_in_the_paper(s) for s in grid_specs(['default'], SCALE)]
    behind = [replace(r, nll=np.asarray(r.nll)+1) if r.spec.label=='rotary' else r for r in results]
    verdict, = check_claims(behind, SCALE.name, [c for c in CLAIMS if c.id=='C12'])
    assert 'not past the first plateau of the loss: rotary' in verdict.evidence
