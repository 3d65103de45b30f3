"""A query encoder of your own: a BERT that reads token numbers and is trained along, at `optim.backbone_lr`.

A configuration names it: `imports: [own_query_encoder]`, `model: {query_encoder: {kind: bert, layers: 2}}`. Words of
the corpus are rows of one number each: the tokens of a caption, see `write_tokens`.
"""

import tempfile

import h5py
import numpy as np
from pydantic.dataclasses import dataclass
from torch import nn
from transformers import BertConfig, BertModel

import prvr
from prvr.config import QUERIES, STRICT, ModelConfig, QuerySettings
from prvr.data import Corpus
from prvr.models import QueryPart
from prvr.toy.toy_corpus import write_corpus
from prvr.training import train


@dataclass(frozen=True, config=STRICT)
class BertSettings(QuerySettings):
    layers: int = 2
    width: int = 32
    tokens: int = 1000
    pretrained: str = ""  # a model of transformers of these sizes, by name or folder


class Bert(QueryPart):
    def __init__(self, model: ModelConfig) -> None:
        super().__init__(model)
        own: BertSettings = self.settings
        sizes = {"vocab_size": own.tokens, "hidden_size": own.width, "num_hidden_layers": own.layers}
        self.backbone = BertModel(BertConfig(**sizes, num_attention_heads=2), add_pooling_layer=False)
        self.project = nn.Linear(own.width, model.hidden)  # new, so trained at optim.lr

    def load_backbone(self) -> None:  # of a new run alone
        if self.settings.pretrained:
            loaded = BertModel.from_pretrained(self.settings.pretrained, add_pooling_layer=False)
            self.backbone.load_state_dict(loaded.state_dict())

    def forward(self, words, sequences):
        tokens, mask = words[..., 0].long(), sequences.mask  # (q, w)
        return self.project(self.backbone(tokens, attention_mask=mask.long()).last_hidden_state[:, 0])


QUERIES.register("bert", Bert, "A BERT, fine-tuned.", BertSettings, needs=["tokens"])


def write_tokens(corpus: Corpus) -> None:
    """Gives a corpus token numbers as words; of your own, those of the tokenizer of the BERT."""
    words = [(c.id, c.text.split()) for split in corpus.splits for c in corpus.split(split).captions]
    number = {word: i for i, word in enumerate(sorted({word for _, text in words for word in text}), 2)}
    with h5py.File(corpus.query_file, "w") as file:
        for caption, text in words:
            file[caption] = np.array([[1], *([number[word]] for word in text)], np.float32)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        write_tokens(write_corpus(root, "tiny"))
        keys = {"data.root": root, "data.collection": "toy-tiny", "train.epochs": 2, "model.query_dim": 1}
        config = prvr.load_config("gmmformer-toy", keys | {"model.query_encoder": "bert", "optim.backbone_lr": 1e-4})
        print(train(config, output=f"{root}/run").report.text_to_video)
