"""Makes a tiny language model with random weights: `python -m analysis.benchmarks.tiny_model DIR`.

The model is a Llama with 2 layers, in the format of the package `transformers`, which this module needs beside torch.
Its byte-level tokenizer is trained on evo's own code.  It writes random text, so it tests servers and clients of
models without a download; nothing that it writes is a kernel.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = 512
CONTEXT = 32768  # tokens; a prompt of evo has some thousands
START, END = "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    f"{START}{{{{ message.role }}}}\n{{{{ message.content }}}}{END}\n"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{START}assistant\n{{% endif %}}"
)


def make(folder: Path, seed: int = 0) -> int:
    """Writes model and tokenizer into `folder` and returns the number of the model's parameters."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    texts = [file.read_text(encoding="utf-8") for file in sorted((ROOT / "evo").rglob("*.py"))]
    bpe.train_from_iterator(texts, vocab_size=VOCABULARY, special_tokens=[START, END], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, eos_token=END, pad_token=END, chat_template=CHAT_TEMPLATE
    )
    tokenizer.save_pretrained(folder)

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.convert_tokens_to_ids(START),
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=tokenizer.convert_tokens_to_ids(END),
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )
    model.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    print(f"{folder}: {make(folder)} parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
