"""Makes a tiny language model with random weights: `python -m analysis.benchmarks.tiny_model DIR [--gguf FILE]`.

The model is a Llama with 2 layers and a byte-level tokenizer trained on evo's own code.  It writes random text: it
serves to try servers of models without a download, and nothing that it writes is a kernel.  DIR gets the format of
the package `transformers`, FILE that of llama.cpp; the packages `transformers` and `gguf` are imported here only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = 512
CONTEXT = 32768  # tokens; a prompt of evo has about 6000 of them
START, END = "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    f"{START}{{{{ message.role }}}}\n{{{{ message.content }}}}{END}\n"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{START}assistant\n{{% endif %}}"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gguf", type=Path)
    arguments = parser.parse_args()
    model, tokenizer = make(arguments.folder)
    print(f"{arguments.folder}: {model.num_parameters()} parameters, {len(tokenizer)} tokens")
    if arguments.gguf:
        write_gguf(model, tokenizer, arguments.gguf)
        print(arguments.gguf)
    return 0


def make(folder: Path, seed: int = 0) -> tuple[Any, Any]:
    """Writes model and tokenizer into `folder` and returns both."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    tokenizer = _tokenizer()
    special = {
        "bos_token_id": tokenizer.convert_tokens_to_ids(START),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        **special,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, **special)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def _tokenizer() -> Any:
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    texts = [file.read_text(encoding="utf-8") for file in sorted((ROOT / "evo").rglob("*.py"))]
    bpe.train_from_iterator(texts, vocab_size=VOCABULARY, special_tokens=[START, END], show_progress=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, eos_token=END, pad_token=END, chat_template=CHAT_TEMPLATE
    )


def write_gguf(model: Any, tokenizer: Any, file: Path) -> None:
    """Writes the model for llama.cpp.

    Rows of the projections of queries and keys are not reordered as llama.cpp expects: the weights are random anyway.
    """
    import gguf

    config, vocabulary = model.config, json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    special = {START, END}
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    kinds = (gguf.TokenType.NORMAL, gguf.TokenType.CONTROL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds[token in special] for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in vocabulary["merges"]])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tokenizer.chat_template)
    for name, weights in _weights(model):
        writer.add_tensor(name, weights.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.layers": "blk",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def _weights(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields the weights by the names that llama.cpp has for them."""
    for name, weights in model.state_dict().items():
        if not name.startswith("lm_head"):  # tied to the embedding
            for old, new in _GGUF_NAMES.items():
                name = name.replace(old, new)
            yield name, weights


if __name__ == "__main__":
    sys.exit(main())
