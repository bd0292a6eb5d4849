"Transformer length extrapolation, receptive fields and the Sandwich bias: a paper, step by step, as a library."
__version__ = "0.1.0"

from sandwich_repro.attention import biased_attention
from sandwich_repro.config import ModelConfig
from sandwich_repro.encodings import ENCODINGS, make_encoding
from sandwich_repro.erf import cumulative_gradient, empirical_receptive_field, normalized_gradient
from sandwich_repro.model import TransformerLM
from sandwich_repro.perplexity import last_token_nll, last_token_perplexity, sliding_window_perplexity
from sandwich_repro.position import FixedBias, PositionalEncoding, relative_distance

__all__ = [
    "ENCODINGS", "FixedBias", "ModelConfig", "PositionalEncoding", "TransformerLM", "biased_attention", "cumulative_gradient", "empirical_receptive_field",
    "last_token_nll", "last_token_perplexity", "make_encoding", "normalized_gradient", "relative_distance", "sliding_window_perplexity"]
