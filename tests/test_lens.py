"The lens on Hugging Face models of several families, from the library and from the command line, and our attention inside them."
import json

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from sandwich_repro.encodings import make_encoding
from sandwich_repro.lens import lens, register_attention
from sandwich_repro.lens_report import load_lens, save_lens, summary

transformers = pytest.importorskip('transformers')
SIZES = dict(vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=48, bos_token_id=0, eos_token_id=0, pad_token_id=0)


def tiny(family, **more):
    "An untrained model of a family, the same at each call"
    torch.manual_seed(0)
    config = getattr(transformers, f'{family}Config')(**SIZES | more)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope='module')
def documents():
    rng = np.random.default_rng(0)
    return [rng.integers(1, 50, size=n) for n in (300, 150, 90, 400, 210)]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    "A model and its tokenizer as save_pretrained leaves them, and a text"
    from sandwich_repro.documents import load_corpus
    from sandwich_repro.tokens import train_tokenizer
    there, texts = tmp_path_factory.mktemp('tiny'), load_corpus('code').train[:40]
    tiny('Llama', vocab_size=300).save_pretrained(there)
    tokenizer = train_tokenizer(texts, 300)._tokenizer
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token='<|endoftext|>').save_pretrained(there)
    (there/'one.txt').write_text('\n'.join(texts)[:60_000], encoding='utf-8')
    return there


@pytest.mark.parametrize('family, more', [
    ('GPTNeoX', {}), ('Qwen2', dict(use_sliding_window=True, sliding_window=5, max_window_layers=1)), ('OPT', dict(ffn_dim=64, word_embed_proj_dim=32)),
    ('Gemma3Text', dict(sliding_window=5, head_dim=8)), ('Phi3', dict(sliding_window=5)), ('Olmo2', {}),
    ('Qwen2Moe', dict(num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16, use_sliding_window=True, sliding_window=8, max_window_layers=1)),
    ('Phimoe', dict(num_local_experts=4, sliding_window=8))])
def test_our_attention_gives_the_logits_of_theirs(family, more):
    model, tokens = tiny(family, **more), torch.randint(1, 50, (3, 21))
    real = (torch.arange(21)>=torch.tensor([[0], [4], [9]])).long()
    places = {} if family=='OPT' else dict(position_ids=(real.cumsum(1)-1).clamp(min=0))
    found = []
    for attention in (register_attention(), 'eager'):
        model.set_attn_implementation(attention)
        with torch.no_grad():
            whole = model(tokens).logits
            padded = model(tokens, attention_mask=real, **places).logits[real.bool()]
            grown = model.generate(tokens[:, :4], attention_mask=torch.ones(3, 4).long(), max_new_tokens=9, do_sample=False)
        found.append((whole, padded, grown))
    assert (found[0][2]==found[1][2]).all()
    for ours, theirs in zip(found[0][:2], found[1][:2]): assert_close(ours, theirs)


def test_a_model_that_asks_for_more_than_we_have_is_refused():
    for family, more, asked in (('Gemma2', dict(head_dim=8, attn_logit_softcapping=30.), 'softcap'), ('GptOss', dict(head_dim=8, num_local_experts=2), 's_aux')):
        model = tiny(family, **more)
        model.set_attn_implementation(register_attention())
        with pytest.raises(ValueError, match=asked): model(torch.randint(1, 50, (1, 9)))
    model = tiny('Llama', attention_dropout=.1).train()
    model.set_attn_implementation(register_attention())
    with pytest.raises(ValueError, match='attention dropout to 0'): model(torch.randint(1, 50, (1, 9)))


@pytest.mark.parametrize('family, more, call', [
    ('Llama4Text', dict(head_dim=8, intermediate_size_mlp=64, attention_chunk_size=8, num_local_experts=1, no_rope_layers=[1, 1]), {}),
    ('Mistral', dict(sliding_window=6), dict(position_ids=torch.cat([torch.arange(8), torch.arange(12)])[None])),
    ('Mistral', dict(sliding_window=6), dict(attention_mask=torch.tensor([[1]*8+[0]*4+[1]*8]))),
    ('Llama', {}, dict(position_ids=torch.cat([torch.arange(8), torch.arange(12)])[None]))])
def test_masks_that_are_no_windows_are_refused(family, more, call):
    "Chunks, texts packed in a row, holes inside a window: attention by distance would give other logits"
    model = tiny(family, **more)
    model.set_attn_implementation(register_attention())
    with pytest.raises(ValueError, match='hides more than padding'): model(torch.randint(1, 50, (1, 20)), use_cache=False, **call)


def test_models_with_attention_of_their_own_stay_causal(tmp_path):
    "They look up masks by the name that they are given, and then do not ask for the attention"
    torch.manual_seed(0)
    transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=50, hidden_size=32, n_layer=2, n_head=4)).save_pretrained(tmp_path)
    tokens, found = torch.randint(1, 50, (1, 12)), []
    for attention in (register_attention(), 'eager'):
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=attention)
        with torch.no_grad(): found.append(model(tokens).logits)
    assert_close(*found)


def test_names_mean_one_attention_each():
    model, tokens, found = tiny('Llama'), torch.randint(1, 50, (1, 20)), []
    narrow = register_attention(window=3)
    register_attention(window=10)
    for name in (narrow, register_attention(window=3)):
        model.set_attn_implementation(name)
        with torch.no_grad(): found.append(model(tokens).logits)
    assert_close(*found)


def test_a_bias_put_into_a_model_is_that_bias():
    "Two layers of uniform attention: without queries only the bias decides where a token looks"
    model = tiny('Llama')
    for layer in model.model.layers: torch.nn.init.zeros_(layer.self_attn.q_proj.weight)
    model.set_attn_implementation(register_attention(make_encoding('alibi', 4, 32)))
    values, keep = {}, model.model.layers[0].self_attn
    keep.o_proj.register_forward_pre_hook(lambda module, inputs: values.update(out=inputs[0]))
    keep.v_proj.register_forward_hook(lambda module, inputs, out: values.update(v=out))
    with torch.no_grad(): model(torch.randint(1, 50, (1, 12)))
    v = values['v'].view(12, 2, 8).repeat_interleave(2, 1).transpose(0, 1)
    bias = make_encoding('alibi', 4, 32).bias(torch.arange(12)[:, None]-torch.arange(12)).masked_fill(torch.ones(12, 12).triu(1).bool(), -torch.inf)
    assert_close(values['out'].view(12, 4, 8).transpose(0, 1), bias.softmax(-1)@v)


def test_positions_limit_the_lengths(documents):
    report = lens(tiny('OPT', ffn_dim=64, word_embed_proj_dim=32), documents, n_segments=20, erf_segments=4)
    assert report.lengths==[6, 12, 24, 48] and report.train_len==48
    assert [note.partition(' is')[0] for note in report.notes]==['length 96', 'length 192']
    with pytest.raises(ValueError, match='must not pass 49, the longest'): lens(tiny('OPT', ffn_dim=64, word_embed_proj_dim=32), documents, lengths=[50], n_segments=20)


def test_one_document_is_cut_so_that_errors_can_be_told(documents):
    whole = lens(tiny('Llama'), [np.concatenate(documents)], lengths=[8, 16], n_segments=40, erf_segments=8)
    assert len(set(np.asarray(whole.documents).tolist()))>10 and len(whole.erf_interval)==2
    assert whole.text=='1 document' and 'cut into 20 stretches' in whole.notes[-1]
    assert lens(tiny('Llama'), [np.concatenate(documents)], lengths=[8], n_segments=40, erf_len=400, erf_segments=8).erf<400
    short = lens(tiny('Llama'), documents[:1], lengths=[8, 200], n_segments=5, erf_segments=3)
    assert short.erf_interval==() and 'all segments are of one document, so no interval' in summary(short)


def test_what_lies_beyond_is_judged_against_the_training_length_or_not_at_all(documents):
    ask = lambda **asked: lens(tiny('Llama'), documents, n_segments=20, erf_segments=4, **asked)
    report = ask(lengths=[8, 60])
    assert report.lengths==[8, 48, 60] and report.base==48 and [bool(row['beyond L_tr']) for row in report.rows()]==[False, False, True]
    out_of_reach = ask(train_len=5000, lengths=np.array([8, 16]))
    assert out_of_reach.lengths==[8, 16] and 'L_tr=5000 is out of reach' in out_of_reach.notes[0]
    assert [row['beyond L_tr'] for row in out_of_reach.rows()]==['', '']


def test_models_that_are_no_causal_language_models_are_refused(tmp_path, documents):
    small = dict(vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    with pytest.raises(ValueError, match='sees tokens ahead'): lens(transformers.BertForMaskedLM(transformers.BertConfig(**small)), documents, train_len=16, n_segments=20)
    t5 = transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=50, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2))
    with pytest.raises(ValueError, match='encoder with a decoder'): lens(t5, documents, train_len=16, n_segments=20)
    with pytest.raises(ValueError, match='get_input_embeddings'): lens(torch.nn.Sequential(torch.nn.Embedding(50, 50)), documents, train_len=16, n_segments=20)
    tiny('Llama').model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="lacks 1 weights of LlamaForCausalLM, e.g. .'lm_head.weight'."): lens(tmp_path, documents, tokenizer=lambda *a, **b: {'input_ids': []})


def test_positions_of_what_looks_at_pictures_limit_no_text():
    from sandwich_repro.interface import max_positions
    text = SIZES | dict(head_dim=8, sliding_window=16)
    vision = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)
    assert max_positions(transformers.Gemma3ForConditionalGeneration(transformers.Gemma3Config(text_config=text, vision_config=vision))) is None


def test_two_tokens_before_every_text_are_too_many_for_the_ruler(documents):
    tokenizer = lambda texts, add_special_tokens=True, **_: {'input_ids': [4, 5]*add_special_tokens+[9] if isinstance(texts, str) else [[9]*300 for _ in texts]}  # noqa: E731
    with pytest.raises(ValueError, match='puts 2 tokens before every text'): lens(tiny('Llama'), documents, tokenizer=tokenizer)
    assert lens(tiny('Llama'), documents, tokenizer=tokenizer, bos=None, lengths=[8], n_segments=20, erf_segments=4).bos is None


def test_reports_of_different_questions_are_different_files(documents, tmp_path):
    model = tiny('Llama')
    first, second = (lens(model, documents, lengths=[8, 16], n_segments=n, erf_segments=4) for n in (20, 21))
    paths = {save_lens(r, tmp_path) for r in (first, second, first)}
    paths |= {save_lens(lens(model, asked, lengths=[8, 16], n_segments=20, erf_segments=n, bos=bos), tmp_path) for asked, n, bos in ((documents, 5, None), (documents[1:], 4, None), (documents, 4, 0))}
    assert len(paths)==5 and load_lens(save_lens(first, tmp_path)).rows()==first.rows()
    (tmp_path/'other.json').write_text('{"kind": "?"}')
    with pytest.raises(ValueError, match='no report of the lens'): load_lens(tmp_path/'other.json')
    (tmp_path/'half.json').write_text(json.dumps(dict(kind='sandwich_repro.LensReport', model='m')))
    with pytest.raises(ValueError, match='not a whole report'): load_lens(tmp_path/'half.json')


def test_the_command_reads_a_model_from_a_folder(folder, tmp_path, call):
    code, out, err = call('lens', folder, '--corpus', folder/'one.txt', '--n-segments', 30, '--erf-segments', 4, '--train-len', 24, '--out', tmp_path)
    assert code==0, err
    report = load_lens(next(tmp_path.glob('*.json')))
    assert report.train_len==24 and len(report.nll)==30 and 'of the gradient lies on the last' in out
    assert {p.suffix for p in tmp_path.iterdir()}=={'.json', '.png'}


@pytest.mark.parametrize('words, message', [
    (('nowhere/at-all',), 'cannot be read by AutoTokenizer'), (('{folder}', '--lengths', '8,x'), "lengths='8,x' must be whole numbers"),
    (('{folder}', '--bos', 'start'), "bos='start' must be a token id"), (('{folder}', '--bos', '300'), 'bos 300 is outside'), (('{folder}', '--dtype', 'int8'), "unknown dtype 'int8'"),
    (('{folder}', '--bos', '1,2'), "bos='1,2' must be a token id"), (('{folder}', '--device', 'there'), "device='there' cannot be used"), (('{folder}/none',), 'there is no folder'),
    (('{folder}', '--lengths', '8,4'), 'must be sorted'), (('{folder}', '--train-len', '-3'), 'train_len=-3'),
    (('{folder}', '--n-segments', '0'), 'n_segments=0'), (('{folder}', '--batch-size', '0'), 'batch_size=0'), (('{folder}', '--corpus', '{folder}/none.txt'), 'none.txt'), (('{folder}', '--threshold', '1'), 'between 0 and 1')])
def test_what_the_command_refuses_is_one_line(folder, tmp_path, call, words, message):
    code, _, err = call('lens', *(w.format(folder=folder) for w in words), '--out', tmp_path)
    last = err.splitlines()[-1]
    assert code==2 and message in last and last.startswith('sandwich-repro: ') and 'Traceback' not in err and not list(tmp_path.glob('*.json'))
