"""Whether `loongforge checkpoint export-gguf` writes what llama.cpp's converter writes, and whether llama.cpp computes with it.

    python gguf_roundtrip.py --llama-cpp FOLDER --program target/debug/loongforge     # compares files, and scores where it can
    python gguf_roundtrip.py --llama-cpp FOLDER --goldens                             # writes the files of the Rust tests

FOLDER is a checkout of llama.cpp with `convert_hf_to_gguf.py`. Tiny random models with tokenizers are made by transformers and
written by both; metadata and the bytes of every tensor must be equal, in each type. Keys that the converter guesses from the name
of a folder are left out, and the rule of a tokenizer is given to it: it knows published tokenizers only, by their hash. With the
package `xllamacpp` the probabilities of the next token are compared with those of transformers, and ids of texts with those of the
`tokenizers` package.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parents[2]
GOLDENS = HERE / "src/checkpoint/gguf/goldens"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
END = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXTS = ["the people know 123 ways, don't they?", "Straße  café\n\n 你好 x_1 = {y: 'z'}", " leading and trailing  ", "a<|im_end|>b"]
WORDS = (TEXTS + ["the water of the people in the world is that which they know", "which words are first, only, most or made"]) * 8
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
GUESSED = {"general.name", "general.basename", "general.finetune", "general.version", "general.organization", "GGUF.version",
           "GGUF.tensor_count", "GGUF.kv_count", "general.size_label"}
# Of log-probabilities. llama.cpp looks Gemma's GELU up in a table of float16.
LIMITS = {"gemma": {"f32": 2e-2, "q8_0": 3.0}, "others": {"f32": 1e-4, "q8_0": 0.5}}
SMALL = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=352,
             max_position_embeddings=256, bos_token_id=320, eos_token_id=321, pad_token_id=None, tie_word_embeddings=False)


def byte_level(folder, rule):
    """A tokenizer of merged bytes with special tokens from 320 on."""
    digits, ignores = {"qwen2": (r"\p{N}|", False), "llama-bpe": (r"\p{N}{1,3}|", True)}[rule]
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignores))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(CONTRACTIONS + digits + END), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    if rule == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.train_from_iterator(WORDS, trainers.BpeTrainer(vocab_size=320, show_progress=False,
                                                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens(["<|begin|>", "<|im_end|>", "<|im_start|>", "<|endoftext|>"])
    tokenizer.add_tokens(["<tool_call>"])
    assert tokenizer.token_to_id("<|begin|>") == 320, tokenizer.get_vocab_size()
    if rule == "llama-bpe":
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B", special_tokens=[("<|begin|>", 320)])])
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": "<|im_end|>",
                "clean_up_tokenization_spaces": False}
    if rule == "qwen2":
        settings["chat_template"] = TEMPLATE
    else:
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"top_k": 20, "top_p": 0.8, "temperature": 0.7,
                                                               "repetition_penalty": 1.05}))
    return rule


def word_pieces(folder):
    """A SentencePiece model of the kind of LLaMA 2, with its tokenizer.json."""
    import io
    import sentencepiece
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS), model_writer=model, model_type="bpe", vocab_size=345, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2, num_threads=1)
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    assert pieces.vocab_size() == 345, pieces.vocab_size()
    special = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "legacy": True,
                "add_bos_token": True, "add_eos_token": False, "chat_template": TEMPLATE, "added_tokens_decoder": {
                    str(id): {"content": text, **special}
                    for id, text in enumerate(["<unk>", "<s>", "</s>"])} | {"345": {"content": "<|im_end|>", **special}}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return "default"


def cases():
    """Name, class of the config, its changes, the rule of its tokenizer, the type that it is stored in."""
    llama3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 32}
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
    pieces = dict(bos_token_id=1, eos_token_id=2)
    gemma = dict(head_dim=32, query_pre_attn_scalar=32, tie_word_embeddings=True, num_hidden_layers=4, **pieces)
    experts = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True, head_dim=16)
    return [
        ("llama3", "LlamaConfig", dict(rope_parameters=llama3), "llama-bpe", torch.float32),
        ("llama_biases", "LlamaConfig", dict(attention_bias=True, mlp_bias=True, head_dim=32), "llama-bpe", torch.float16),
        ("llama2", "LlamaConfig", dict(num_key_value_heads=4, **pieces), "pieces", torch.bfloat16),
        ("mistral", "MistralConfig", dict(sliding_window=128, **pieces), "pieces", torch.bfloat16),
        ("mixtral", "MixtralConfig", dict(num_local_experts=4, num_experts_per_tok=2, **pieces), "pieces", torch.float32),
        ("qwen2", "Qwen2Config", dict(tie_word_embeddings=True), "qwen2", torch.bfloat16),
        ("qwen2_yarn", "Qwen2Config", dict(rope_parameters=yarn), "qwen2", torch.float32),
        ("qwen3", "Qwen3Config", dict(head_dim=32, tie_word_embeddings=True), "qwen2", torch.bfloat16),
        ("qwen3_moe", "Qwen3MoeConfig", experts, "qwen2", torch.float32),
        ("gemma", "GemmaConfig", dict(head_dim=32, tie_word_embeddings=True, **pieces), "pieces", torch.bfloat16),
        ("gemma2", "Gemma2Config", dict(sliding_window=128, **gemma), "pieces", torch.bfloat16),
        ("gemma3", "Gemma3TextConfig", dict(sliding_window=128, **{**gemma, "num_hidden_layers": 7}), "pieces", torch.float32),
    ]


def make(folder, kind, changes, rule, dtype):
    config = getattr(transformers, kind)(**{**SMALL, **changes})
    torch.manual_seed(11)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        # Larger than at the start, so that scores differ; norms are not all one.
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.1)
    model = model.to(dtype)
    model.save_pretrained(folder)
    return word_pieces(folder) if rule == "pieces" else byte_level(folder, rule)


def convert(llama_cpp, folder, out, dtype, rule):
    """The converter, told the rule of the tokenizer."""
    if str(llama_cpp) not in sys.path:
        sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    from conversion.base import TextModel
    import convert_hf_to_gguf
    TextModel.get_vocab_base_pre = lambda self, tokenizer: rule
    sys.argv = ["convert_hf_to_gguf.py", str(folder), "--outfile", str(out), "--outtype", dtype]
    convert_hf_to_gguf.main()


def read(path):
    """Metadata, and of each tensor its type, shape and bytes."""
    import gguf
    reader = gguf.GGUFReader(path)
    metadata = {name: field.contents() for name, field in reader.fields.items() if name not in GUESSED}
    tensors = {it.name: (it.tensor_type.name, [int(size) for size in reversed(it.shape)], it.data.tobytes()) for it in reader.tensors}
    return metadata, tensors


def difference(ours, theirs, allowed):
    found = []
    for what, left, right in [("key", ours[0], theirs[0]), ("tensor", ours[1], theirs[1])]:
        for name in sorted(left.keys() | right.keys()):
            # What only one side has may be allowed; what both have must be equal.
            excused = name in allowed and not (name in left and name in right)
            if left.get(name) != right.get(name) and not excused:
                found.append(f"{what} {name}: {str(left.get(name))[:90]} | {str(right.get(name))[:90]}")
    return found


def scores(gguf, folder):
    """The largest difference of log-probabilities of the next token from transformers', and whether ids are equal (None: not compared)."""
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup = str(gguf), 128, 1, False
    params.cpuparams.n_threads = 1
    # Keys, values and products as exact as they are here.
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)

    def ask(path, body):
        request = urllib.request.Request(server.listening_address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request))

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json")) if (folder / "tokenizer.json").exists() else None
    worst, same, count = 0.0, None if tokenizer is None else True, 0
    for text in TEXTS if tokenizer is not None else []:
        found = ask("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
        same = same and found == tokenizer.encode(text).ids
    for prompt in range(32):
        ids = [(7 * at + 31 * prompt) % 300 for at in range(40)]
        asked = {"prompt": ids, "max_tokens": 1, "logprobs": SMALL["vocab_size"], "temperature": 1.0, "cache_prompt": False}
        found = ask("/v1/completions", asked)["choices"][0]["logprobs"]
        # None where the token that was drawn is no whole character.
        if found is not None and count < 4:
            wanted = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            found = found["content"][0]["top_logprobs"]
            assert len(found) > 300, len(found)
            gaps = [worst] + [abs(it["logprob"] - wanted[it["id"]].item()) for it in found]
            worst, count = max(gaps, key=lambda gap: (gap != gap, gap)), count + 1  # NaN, where one is
    assert count == 4
    return worst, same


def digest(values):
    """A hash of a long list."""
    floats = isinstance(values[0], float)
    data = struct.pack(f"<{len(values)}f", *values) if floats else "\0".join(map(str, values)).encode()
    return hashlib.sha256(data).hexdigest()[:16]


def goldens(llama_cpp):
    """For the Rust tests: a model of each kind of tokenizer with hashes of what the converter writes."""
    for name, kind, changes, rule, dtype in cases():
        if name not in ("llama3", "mixtral", "qwen2", "qwen3_moe"):
            continue
        smaller = {**changes, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1 if "mo" in name or "mi" in name else 2,
                   "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / name
            rule = make(folder, kind, smaller, rule, torch.bfloat16)
            expected = {}
            for dtype in ("f32", "f16", "bf16", "q8_0"):
                convert(llama_cpp, folder, folder / "it.gguf", dtype, rule)
                metadata, tensors = read(folder / "it.gguf")
                tensors = {name: [kind, shape, hashlib.sha256(data).hexdigest()[:16]] for name, (kind, shape, data) in tensors.items()}
                expected[dtype] = {"file_type": metadata.pop("general.file_type"), "tensors": tensors}
            for key, value in metadata.items():
                if isinstance(value, list) and len(value) > 20:
                    metadata[key] = [len(value), digest(value)]
            expected["metadata"] = metadata
            (folder / "it.gguf").unlink()
            shutil.rmtree(GOLDENS / name, ignore_errors=True)
            shutil.copytree(folder, GOLDENS / name)
            (GOLDENS / name / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", type=Path, required=True)
    parser.add_argument("--program")
    parser.add_argument("--goldens", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", action="append", choices=[name for name, *_ in cases()])
    arguments = parser.parse_args()
    if arguments.goldens:
        return goldens(arguments.llama_cpp)
    out = arguments.out or Path(tempfile.mkdtemp())
    wrong = 0
    for name, kind, changes, rule, dtype in cases():
        if arguments.case and name not in arguments.case:
            continue
        folder = out / name
        rule = make(folder, kind, changes, rule, dtype)
        # Ours says always whether a text begins with a blank, and which token is the unknown one; never of a pair's separator.
        allowed = {"tokenizer.ggml.add_space_prefix", "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.add_sep_token"}
        if name.startswith("gemma"):
            # Those of CodeGemma, which the converter puts into each; and a base that is llama.cpp's own where a file has none.
            allowed |= {f"tokenizer.ggml.{token}_token_id" for token in ("prefix", "suffix", "middle", "fsep", "eot")}
            allowed |= {f"{name}.rope.freq_base"}
        for type_ in ("f32", "f16", "bf16", "q8_0"):
            ours, theirs = out / f"{name}-{type_}.gguf", out / f"{name}-{type_}-theirs.gguf"
            ours.unlink(missing_ok=True)
            subprocess.run([arguments.program, "checkpoint", "export-gguf", folder, ours, "--dtype", type_], check=True)
            convert(arguments.llama_cpp, folder, theirs, type_, rule)
            found = difference(read(ours), read(theirs), allowed)
            print(f"{name:14} {type_:5} {'equal' if not found else 'DIFFERENT'}")
            print("".join(f"    {line}\n" for line in found), end="")
            wrong += len(found)
        try:
            import xllamacpp  # noqa: F401
        except ImportError:
            continue
        for type_ in ("f32", "q8_0"):
            worst, same = scores(out / f"{name}-{type_}.gguf", folder)
            limit = LIMITS["gemma" if name.startswith("gemma") else "others"][type_]
            far = "" if worst <= limit else f" (more than {limit})"
            ids = {True: "equal", False: "DIFFERENT", None: "not compared"}[same]
            print(f"{name:14} {type_:5} log-probabilities within {worst:.2e}{far} of transformers', ids of texts {ids}")
            wrong += bool(far) + (same is False)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
