"Training: what must hold when it is stopped, killed, resumed, or goes wrong"
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import lightning as L
import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import DataLoader

import sandwich_repro.train as train_module
from sandwich_repro.alibi import alibi_bias
from sandwich_repro.config import ModelConfig, RunSpec, TrainConfig
from sandwich_repro.encodings import ENCODINGS
from sandwich_repro.model import TransformerLM
from sandwich_repro.position import FixedBias
from sandwich_repro.train import LitLM, fit, learning_rate

ROOT = Path(__file__).resolve().parent.parent
MODEL = ModelConfig(vocab_size=8, n_layers=1, n_heads=2, d_model=16, train_len=8, encoding="alibi")
TRAIN = TrainConfig(steps=9, batch_size=4, lr=1e-2, warmup=0.2, val_check_interval=3)


class Source:
    "Random tokens; remembers which batches were asked for"
    def __init__(self): self.asked = []
    def batch(self, step):
        self.asked.append(step)
        return torch.randint(8, (4, 9), generator=torch.Generator().manual_seed(step))


class Data(L.LightningDataModule):
    "`Source`, and three held-out batches"
    def __init__(self):
        super().__init__()
        self.source = Source()
    def train_dataloader(self): return train_module._Endless(self.trainer, self.source)
    def val_dataloader(self): return DataLoader([self.source.batch(10**6+i) for i in range(3)], batch_size=None)


def cycles():
    from sandwich_repro.corpus import LMDataModule
    return LMDataModule(torch.arange(400).remainder(8).numpy(), torch.arange(100).remainder(7).numpy(), TRAIN, 8, seed=0)


def run(folder, data=None, model=MODEL, train=TRAIN, **kwargs):
    return fit(model, train, data or Data(), folder=folder, **{"seed": 0, "progress": False, "save_seconds": 0., **kwargs})


def assert_same_weights(a, b):
    assert a.state_dict().keys()==b.state_dict().keys()
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values()): assert torch.equal(x, y), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"))


class At(L.Callback):
    "Do something at the end of one step"
    def __init__(self, step, action): self.step, self.action = step, action
    def on_train_batch_end(self, trainer, lit, *args):
        if trainer.global_step==self.step: self.action()


def interrupt(): raise KeyboardInterrupt


# --- stopped and resumed ---

@pytest.fixture(autouse=True)
def ctrl_c():
    "A shell starts background jobs with Ctrl-C ignored"
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, outside)


@pytest.mark.parametrize("step", range(1, 9))
@pytest.mark.parametrize("action", [interrupt, lambda: signal.raise_signal(signal.SIGINT)], ids=["raised", "ctrl-c"])
def test_nine_steps_are_nine_wherever_they_are_interrupted(tmp_path, whole, step, action):
    with pytest.raises(KeyboardInterrupt): run(tmp_path, callbacks=[At(step, action)])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    data = Data()
    done = run(tmp_path, data)
    assert done.steps==9
    assert done.loss==whole.loss
    assert [s for s, _ in done.loss["val"]]==[3, 6, 9]
    assert_same_weights(done.model, whole.model)
    assert min(data.source.asked, default=9)>=step-1  # at most the interrupted step is done again


@pytest.mark.parametrize("where", [2, 3, 6])
def test_an_error_in_the_data_loses_nothing(tmp_path, whole, where):
    data = Data()
    good = data.source.batch
    def batch(step):
        if step==where: raise OSError("the disk is gone")
        return good(step)
    data.source.batch = batch
    with pytest.raises(OSError, match="disk"): run(tmp_path, data, save_seconds=1e9)
    done = run(tmp_path)
    assert done.loss==whole.loss
    assert_same_weights(done.model, whole.model)


def test_token_windows_of_a_corpus_resume_too(tmp_path):
    whole = run(tmp_path/"whole", cycles())
    with pytest.raises(KeyboardInterrupt): run(tmp_path/"part", cycles(), callbacks=[At(4, interrupt)])
    done = run(tmp_path/"part", cycles())
    assert done.loss==whole.loss
    assert [s for s, _ in done.loss["val"]]==[3, 6, 9]
    assert_same_weights(done.model, whole.model)


def test_interrupted_in_a_validation(tmp_path, whole):
    class InValidation(L.Callback):
        def on_validation_batch_end(self, trainer, *args):
            if trainer.global_step==6: raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): run(tmp_path, callbacks=[InValidation()])
    done = run(tmp_path)
    assert done.loss==whole.loss
    assert_same_weights(done.model, whole.model)


def test_a_second_ctrl_c_does_not_wait(tmp_path):
    def twice(): signal.raise_signal(signal.SIGINT); signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt): run(tmp_path, callbacks=[At(4, twice)])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert run(tmp_path).steps==9


CHILD = '''
import os, signal, sys, time
sys.path.insert(0, os.environ["TESTS"])
import torch
torch.set_num_threads(1)
import lightning as L
import test_train as T
folder, mode = sys.argv[1:]
class Slow(L.Callback):
    def on_train_batch_end(self, *args): time.sleep(.02)
class KilledWhileWriting(L.Callback):
    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step%8==0: os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
T.run(folder, train=T.LONG, callbacks=[Slow()] if mode=="slow" else [KilledWhileWriting()])
'''
LONG = replace(TRAIN, steps=60)


@pytest.fixture
def one_thread():
    "The order of a sum depends on the number of threads"
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)


def python(script, code, *args):
    "Run code in a process of its own"
    script.write_text(code)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "TESTS": str(ROOT/"tests")}
    return subprocess.Popen([sys.executable, script, *map(str, args)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def step_of(path):
    return torch.load(path)["callbacks"]["sandwich_repro"]["record"]["step"]


@pytest.mark.timeout(300)
def test_killed_and_started_again_ends_with_the_same_bits(tmp_path, one_thread):
    folder = tmp_path/"run"
    killed = python(tmp_path/"child.py", CHILD, folder, "slow")
    while not (folder/"last.ckpt").exists() and killed.poll() is None: time.sleep(.02)
    time.sleep(.1)
    killed.kill()  # at any moment
    _, errors = killed.communicate()
    assert killed.returncode==-signal.SIGKILL, errors
    first = step_of(folder/"last.ckpt")
    assert 0<first<60
    killed = python(tmp_path/"child.py", CHILD, folder, "writing")  # and again, before a checkpoint is on the disk
    _, errors = killed.communicate()
    assert killed.returncode==-signal.SIGKILL, errors
    assert list(folder.glob(".last.ckpt.*.part"))
    assert first<=step_of(folder/"last.ckpt")<60
    done, whole = run(folder, train=LONG), run(tmp_path/"whole", train=LONG)
    assert done.loss==whole.loss
    assert_same_weights(done.model, whole.model)


# --- finished, or somebody else's ---

def test_a_finished_run_is_not_trained_again(tmp_path):
    first = run(tmp_path)
    data = Data()
    again = run(tmp_path, data)
    assert data.source.asked==[]
    assert_same_weights(first.model, again.model)
    assert (again.loss, again.steps, again.seconds, again.peak_memory)==(first.loss, 9, first.seconds, first.peak_memory)
    assert not again.model.training
    for other, message in ((dict(seed=1), "seed is 0 there and 1 here"),
                           (dict(model=replace(MODEL, encoding="sandwich")), "model.encoding is 'alibi' there and 'sandwich' here"),
                           (dict(train=replace(TRAIN, lr=.1)), "train.lr is 0.01 there and 0.1 here"),
                           (dict(encoding=FixedBias(alibi_bias, slopes=torch.ones(2))), "FixedBias")):
        with pytest.raises(ValueError, match=message): run(tmp_path, **other)


def test_what_the_caller_names_belongs_to_the_run(tmp_path):
    run(tmp_path, spec=dict(corpus="code"))
    run(tmp_path, spec=dict(corpus="code"))
    with pytest.raises(ValueError, match="spec.corpus is 'code' there and 'math' here"): run(tmp_path, spec=dict(corpus="math"))
    spec = RunSpec()
    run(tmp_path/"spec", spec=spec)
    run(tmp_path/"spec", spec=replace(spec, label="another name", eval=replace(spec.eval, n_segments=7)))
    with pytest.raises(ValueError, match="spec.tokenizer is 'bytes' there and 'bpe' here"): run(tmp_path/"spec", spec=replace(spec, tokenizer="bpe"))


def test_what_killed_writers_left_is_swept_away_after_a_day(tmp_path):
    names = ".last.ckpt.1.part", ".diverged.ckpt.7.0a1b2c3d.part", ".notes.txt"
    for name in (*names, ".last.ckpt.2.part"): (tmp_path/name).touch()
    for name in names: os.utime(tmp_path/name, (time.time()-2*24*3600,)*2)
    run(tmp_path)
    assert sorted(p.name for p in tmp_path.glob(".*"))==[".last.ckpt.2.part", ".notes.txt"]


def test_files_that_are_not_ours_are_named(tmp_path):
    (tmp_path/"last.ckpt").write_bytes(b"half")
    with pytest.raises(ValueError, match="last.ckpt cannot be read"): run(tmp_path)
    (tmp_path/"file").write_text("")
    with pytest.raises(ValueError, match="cannot write into folder"): run(tmp_path/"file"/"below")


# --- checkpoints anybody can read ---

def test_lightning_and_torch_read_a_checkpoint_with_their_defaults(tmp_path, whole):
    with pytest.raises(KeyboardInterrupt): run(tmp_path, callbacks=[At(4, interrupt)])
    path = tmp_path/"last.ckpt"
    assert torch.load(path, weights_only=True)["global_step"]==4
    lit = LitLM.load_from_checkpoint(path)
    assert (lit.config, lit.train_config)==(MODEL, TRAIN)
    trainer = L.Trainer(max_steps=9, max_epochs=-1, accelerator="cpu", gradient_clip_val=1., logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, limit_val_batches=0)
    trainer.fit(lit, datamodule=Data(), ckpt_path=path)
    assert trainer.global_step==9
    assert_same_weights(lit.model, whole.model)


# --- what is not finite ---

class Poison(L.Callback):
    "A gradient that is not a number, in the update after `steps`"
    def __init__(self, steps, ask=True): self.steps, self.ask = steps, ask
    def on_train_start(self, trainer, lit): lit.ask_every_step = self.ask
    def on_after_backward(self, trainer, lit):
        if trainer.global_step==self.steps: next(lit.parameters()).grad[0] = torch.nan


@pytest.mark.parametrize("ask", [True, False], ids=["asked every step", "asked with the loss"])
def test_divergence_is_recorded_and_spares_the_good_checkpoint(tmp_path, ask):
    train = replace(TRAIN, steps=300, val_check_interval=1000)  # a point every three steps
    with pytest.raises(KeyboardInterrupt): run(tmp_path, train=train, callbacks=[At(3, interrupt)])
    good = (tmp_path/"last.ckpt").read_bytes()
    bad = run(tmp_path, train=train, callbacks=[Poison(4, ask)], save_seconds=1e9)
    assert (bad.diverged_at, bad.steps)==(5, 4)
    assert (tmp_path/"last.ckpt").read_bytes()==good
    with pytest.raises(KeyboardInterrupt): run(tmp_path/"clean", train=train, callbacks=[At(4, interrupt)])
    assert_same_weights(bad.model, LitLM.load_from_checkpoint(tmp_path/"clean"/"last.ckpt").model)
    data = Data()
    again = run(tmp_path, data, train=train)
    assert (again.diverged_at, data.source.asked)==(5, [])
    assert_same_weights(bad.model, again.model)


def test_ctrl_c_between_a_divergence_and_its_discovery(tmp_path):
    train = replace(TRAIN, steps=300, val_check_interval=1000)
    with pytest.raises(KeyboardInterrupt): run(tmp_path, train=train, callbacks=[At(3, interrupt)])
    good = (tmp_path/"last.ckpt").read_bytes()
    stop = At(5, lambda: signal.raise_signal(signal.SIGINT))  # the flag is up since this step, and read with the sixth
    with pytest.raises(KeyboardInterrupt): run(tmp_path, train=train, callbacks=[Poison(4, ask=False), stop])
    assert (tmp_path/"last.ckpt").read_bytes()==good
    assert run(tmp_path, train=train).diverged_at==5


def test_a_loss_that_explodes_is_a_result_not_an_error(tmp_path):
    result = run(tmp_path, train=replace(TRAIN, lr=1e30, warmup=0.))
    assert 1<=result.diverged_at<=9 and result.steps==result.diverged_at-1


# --- int and float, none and all ---

def validations(folder, **train):
    seen = []
    class Count(L.Callback):
        def on_validation_batch_end(self, trainer, *args): seen.append(trainer.global_step)
    run(folder, train=replace(TRAIN, **train), callbacks=[Count()])
    return seen


def test_integers_are_counts_and_fractions_are_shares(tmp_path):
    assert validations(tmp_path/"none", limit_val_batches=0, val_check_interval=10**6)==[]
    assert validations(tmp_path/"one", limit_val_batches=1, val_check_interval=9)==[9]
    assert validations(tmp_path/"all", limit_val_batches=1., val_check_interval=9)==[9]*3
    assert validations(tmp_path/"late", limit_val_batches=1, val_check_interval=10**6)==[9]
    assert validations(tmp_path/"share", limit_val_batches=1, val_check_interval=1/3)==[3, 6, 9]
    with pytest.raises(ValueError, match="limit_val_batches=8.0"): validations(tmp_path/"above", limit_val_batches=8.)
    assert validations(tmp_path/"uneven", limit_val_batches=1, val_check_interval=4)==[4, 8, 9]


def test_an_encoding_given_as_an_object_is_known_by_what_it_does(tmp_path):
    "Two functions of one class are two runs; the same function is one, wherever its tensors lie"
    steep, flat = (FixedBias(alibi_bias, slopes=torch.tensor([a, a/2])) for a in (.5, .1))
    first = run(tmp_path, encoding=steep)
    with pytest.raises(ValueError, match="belongs to another run"): run(tmp_path, encoding=flat)
    assert_same_weights(run(tmp_path, encoding=FixedBias(alibi_bias, slopes=torch.tensor([.5, .25]))).model, first.model)


# --- precision ---

def test_float16_is_refused():
    with pytest.raises(ValueError, match="precision.*16-mixed.*bf16-mixed"): replace(TRAIN, precision="16-mixed")


def test_numbers_are_one_run_whether_whole_or_not():
    assert replace(TRAIN, clip=1, weight_decay=0)==TRAIN and repr(replace(TRAIN, clip=1, weight_decay=0))==repr(TRAIN)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("encoding", sorted(ENCODINGS))
def test_lower_precision_leaves_a_float32_model(tmp_path, encoding, precision):
    options = {"window": dict(window=4)}.get(encoding, {})
    model = replace(MODEL, encoding=encoding, encoding_options=options)
    done = run(tmp_path, model=model, train=replace(TRAIN, precision=precision, steps=2, limit_val_batches=1))
    fresh = TransformerLM(model)
    fresh.load_state_dict(done.model.state_dict())
    tokens = torch.randint(8, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(): assert_close(done.model(tokens), fresh.eval()(tokens), rtol=0, atol=1e-6)
    assert {p.dtype for p in done.model.parameters()}=={torch.float32}
    distance = torch.arange(400)
    mine, theirs = (m.encodings[0].bias(distance) for m in (done.model, fresh))
    if mine is not None: assert_close(mine, theirs, rtol=0, atol=0)


# --- seeds, encodings, devices ---

def test_the_seed_alone_decides_the_first_weights(tmp_path):
    train = replace(TRAIN, steps=1)
    torch.manual_seed(1)
    a = run(tmp_path/"a", train=train)
    torch.manual_seed(2)
    torch.rand(3)
    assert_same_weights(a.model, run(tmp_path/"b", train=train).model)
    other = run(tmp_path/"c", train=train, seed=1).model
    assert not torch.equal(next(a.model.parameters()), next(other.parameters()))


def test_an_encoding_of_ones_own_is_trained_as_a_copy(tmp_path):
    from sandwich_repro.learned import KerpleLog
    mine = KerpleLog(2)
    before = {k: v.clone() for k, v in mine.state_dict().items()}
    done = run(tmp_path, encoding=mine)
    for k, v in mine.state_dict().items(): assert torch.equal(v, before[k])
    learned = done.model.encodings[0].state_dict()
    assert any(not torch.equal(learned[k], before[k]) for k in before)
    assert_same_weights(done.model, run(tmp_path, encoding=mine).model)


def test_a_compiled_step_leaves_a_plain_model(tmp_path, whole, monkeypatch):
    calls = []
    monkeypatch.setattr(torch, "compile", lambda function, **kwargs: lambda *args, **inputs: (calls.append(1), function(*args, **inputs))[1])
    done = run(tmp_path, compile=True)
    layers = len(done.model.blocks)
    assert len(calls)==(9+9)*layers  # updates, and three validations of three batches
    done.model(torch.zeros(1, 3, dtype=torch.int64))
    assert len(calls)==18*layers
    assert_same_weights(done.model, whole.model)


def test_ranks_share_the_batch_of_a_step():
    from types import SimpleNamespace
    rows = [next(iter(train_module._Endless(SimpleNamespace(global_step=7, global_rank=r, world_size=2), Source()))) for r in (0, 1)]
    whole = Source().batch(7)
    assert torch.equal(rows[0], whole[0::2]) and torch.equal(rows[1], whole[1::2])


RANKS = '''
import os, sys
sys.path.insert(0, os.environ["TESTS"])
import torch
torch.set_num_threads(1)
import test_train as T
done = T.run(sys.argv[1], T.cycles(), devices=2)
if os.environ.get("LOCAL_RANK", "0")=="0": torch.save(done.loss, sys.argv[2])
'''


@pytest.mark.timeout(300)
def test_two_devices_take_the_same_steps_as_one(tmp_path):
    one = run(tmp_path/"one", cycles())
    _, errors = python(tmp_path/"ranks.py", RANKS, tmp_path/"two", tmp_path/"loss.pt").communicate()
    assert (tmp_path/"loss.pt").exists(), errors
    two = torch.load(tmp_path/"loss.pt")
    for kind in ("train", "val"): assert_close(torch.tensor(two[kind]), torch.tensor(one.loss[kind]), rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="batch_size=4 cannot be divided among 3 devices"): run(tmp_path/"three", cycles(), devices=3)


def test_a_token_outside_the_vocabulary_is_named(tmp_path):
    with pytest.raises(ValueError, match="token id 7 is outside the vocabulary: ids run from 0 to 6"):
        run(tmp_path, model=replace(MODEL, vocab_size=7))


def test_clipping_by_value_is_refused(tmp_path):
    trainer = L.Trainer(max_steps=1, accelerator="cpu", gradient_clip_val=1., gradient_clip_algorithm="value", logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, limit_val_batches=0)
    with pytest.raises(ValueError, match="clipped by their norm"): trainer.fit(LitLM(MODEL, TRAIN), datamodule=Data())


def test_weight_decay_spares_everything_but_linear_layers():
    lit = LitLM(replace(MODEL, encoding="t5"), replace(TRAIN, weight_decay=.1))
    groups = lit.configure_optimizers()["optimizer"].param_groups
    decayed = {id(p) for g in groups if g["weight_decay"]>0 for p in g["params"]}
    for name, p in lit.model.named_parameters():
        linear = name.endswith("weight") and isinstance(lit.model.get_submodule(name.rsplit(".", 1)[0]), torch.nn.Linear)
        assert (id(p) in decayed)==linear, name
    assert sum(len(g["params"]) for g in groups)==len(list(lit.model.parameters()))


def test_the_optimizer_follows_the_schedule(tmp_path):
    rates = []
    class Watch(L.Callback):
        def on_train_batch_start(self, trainer, *args): rates.append(trainer.optimizers[0].param_groups[0]["lr"])
    run(tmp_path, callbacks=[Watch()])
    assert rates==[learning_rate(t, TRAIN) for t in range(9)]
