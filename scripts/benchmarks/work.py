"""The work that every peer does: one model, one set of weights, the same batches, one optimizer.

The parent writes the weights and the batches to a folder once; each peer's processes read them, so
the losses of all peers can be compared step by step.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from helpers import text as data
from helpers.engine.adapters.lora import add_adapters, save_adapters, trainable_parameters
from helpers.text.bundled import bundled

TEXT = bundled("reviews/train.tsv")

LR, BETAS, EPS, WEIGHT_DECAY, CLIP = 3e-4, (0.9, 0.95), 1e-8, 0.01, 1.0
SEED = 0
RANK, ALPHA = 8, 32  # of adapters


@dataclass(frozen=True)
class Work:
    """A model's size and a batch's: what is trained on, and for how many steps."""

    family: str
    layers: int
    hidden: int
    heads: int
    vocab: int
    batch: int
    seq: int
    steps: int
    folder: str

    @property
    def tokens(self) -> int:
        """Of one global batch."""
        return self.batch * self.seq

    def to_dict(self) -> dict[str, Any]:
        optimizer = {
            "optimizer": "AdamW",
            "lr": LR,
            "betas": BETAS,
            "eps": EPS,
            "weight_decay": WEIGHT_DECAY,
            "clip": CLIP,
            "dtype": "float32",
        }
        values = dataclasses.asdict(self) | optimizer
        del values["folder"]
        return values


def config(work: Work) -> Any:
    """The transformers configuration; no dropout, since each layout draws it otherwise."""
    import transformers

    common = {"vocab_size": work.vocab, "bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    sizes = {
        "hidden_size": work.hidden,
        "num_hidden_layers": work.layers,
        "num_attention_heads": work.heads,
        "max_position_embeddings": work.seq,
    }
    makers = {
        "gptj": lambda: transformers.GPTJConfig(
            n_embd=work.hidden,
            n_layer=work.layers,
            n_head=work.heads,
            n_positions=work.seq,
            rotary_dim=work.hidden // work.heads // 4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **common,
        ),
        "neox": lambda: transformers.GPTNeoXConfig(
            intermediate_size=4 * work.hidden,
            attention_dropout=0.0,
            hidden_dropout=0.0,
            **sizes,
            **common,
        ),
        "gpt2": lambda: transformers.GPT2Config(
            n_embd=work.hidden,
            n_layer=work.layers,
            n_head=work.heads,
            n_positions=work.seq,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **common,
        ),
        "falcon": lambda: transformers.FalconConfig(  # the architecture of Falcon-40B
            new_decoder_architecture=True, num_kv_heads=2, bias=False, **sizes, **common
        ),
        "llama": lambda: transformers.LlamaConfig(
            intermediate_size=8 * work.hidden // 3, **sizes, **common
        ),
    }
    return makers[work.family]()


def write(work: Work) -> int:
    """Write the weights and the batches to the work's folder; returns the parameter count."""
    import transformers

    transformers.logging.disable_progress_bar()
    torch.manual_seed(SEED)
    model = transformers.AutoModelForCausalLM.from_config(config(work), dtype=torch.float32)
    model.save_pretrained(work.folder)
    torch.save(_batches(work), Path(work.folder) / "batches.pt")
    return sum(p.numel() for p in model.parameters())


def write_adapters(work: Work) -> int:
    """Write the adapters that every peer starts with, as peft does; how many numbers they are."""
    model = add_adapters(plain_model(work), RANK, ALPHA, seed=SEED, source=work.folder)
    save_adapters(model, adapters(work))
    return trainable_parameters(model)


def adapters(work: Work) -> Path:
    return Path(work.folder) / "adapters"


def _batches(work: Work) -> Tensor:
    """Token ids of the bundled text, [steps, batch, seq]; the text repeats where it is short."""
    tokenizer = data.load_tokenizer(bundled("tokenizer"))
    text = data.tokenize(data.load_examples(TEXT, "lm"), tokenizer, "lm", work.seq)
    needed = work.steps * work.tokens
    stream = text.ids.repeat(-(-needed // len(text.ids)))[:needed]
    return (stream % work.vocab).view(work.steps, work.batch, work.seq)


def batches(work: Work) -> Tensor:
    return torch.load(Path(work.folder) / "batches.pt")


def plain_model(work: Work, **options: Any) -> nn.Module:
    """transformers' own model with the work's weights, in training mode.

    Its attention is what transformers chooses: PyTorch's fused one where the class has it.
    """
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        work.folder, dtype=torch.float32, **options
    )
    return model.train()


def groups(named_parameters: Any) -> list[dict[str, Any]]:
    """AdamW's two groups: matrices decay, norms and biases do not."""
    parameters = [p for _, p in named_parameters if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def adamw(named_parameters: Any) -> torch.optim.AdamW:
    """PyTorch's fused AdamW, its fastest on a CPU."""
    return torch.optim.AdamW(groups(named_parameters), lr=LR, betas=BETAS, eps=EPS, fused=True)


def rows(ids: Tensor, rank: int, ranks: int) -> Tensor:
    """A data rank's equal part of a global batch."""
    return ids.chunk(ranks)[rank]
