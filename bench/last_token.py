"What does the last-token protocol pay for? One row of logits against all, and a window's field against the whole text."
import torch
from measure import alternate, arguments, finish, ratio, row

from sandwich_repro import ModelConfig, TransformerLM

QUESTION = 'Evaluation of the last token (12 layers of 768, vocabulary of 50k)'


@torch.inference_mode()
def main(args):
    vocab, layers, heads, width = (50, 2, 2, 32) if args.smoke else (50_257, 12, 12, 768)
    middle, short, long, window, rounds = (64, 64, 256, 9, 2) if args.smoke else (2048, 512, 8192, 40, 5)
    tokens = torch.randint(vocab, (1, long))
    model = TransformerLM(ModelConfig(vocab, layers, heads, width, 512, 'sandwich')).eval()
    seconds = alternate({'all': lambda: model(tokens[:, :middle]), 'last': lambda: model(tokens[:, :middle], last_only=True)}, min(rounds, 3))
    rows = [row(f'all logits over the last row, L={middle}', ratio(seconds, 'all', 'last'), least=1.35)]
    model = TransformerLM(ModelConfig(vocab, layers, heads, width, 512, 'window', {'window': window})).eval()
    seconds = alternate({n: lambda n=n: model(tokens[:, :n], last_only=True) for n in (short, long)}, rounds)
    rows.append(row(f'window of {window}: last row at L={long} over L={short}', ratio(seconds, long, short), most=1.1))
    return rows


if __name__=='__main__':
    args = arguments(QUESTION)
    finish('last_token', QUESTION, main(args), args)
