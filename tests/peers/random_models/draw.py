"""Random choices."""
import random

ACTIVATIONS = ["gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu", "relu", "relu2",
               "silu", "swish", "tanh"]


# How to draw a configuration, by `model_type`. The class in transformers is the one that AutoModel
# finds.
DECODERS, ENCODER_DECODERS, ENCODERS = {}, {}, {}


def draws(*model_types, of):
    """The function draws configurations of these families."""
    def add(function):
        of.update(dict.fromkeys(model_types, function))
        return function
    return add


class Draw(random.Random):
    """Random choices of one case."""

    def maybe(self, share=0.5):
        return self.random() < share

    def number(self, low, high):
        return round(self.uniform(low, high), 3)

    def token(self, vocab_size):
        return self.randrange(vocab_size)


def common(draw, padding=True):
    config = dict(vocab_size=draw.randint(12, 40))
    if padding and draw.maybe(0.7):
        config["pad_token_id"] = draw.choice([0, 1, config["vocab_size"] - 1,
                                              draw.token(config["vocab_size"])])
    return config


def heads(draw, most=4):
    n = draw.randint(1, most)
    return n, n * 2 * draw.randint(1, 4)
