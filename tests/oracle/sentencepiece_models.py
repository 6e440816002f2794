"""Trains four small SentencePiece models and writes what the Python packages make of texts into
src/core/data/goldens/sentencepiece: /opt/oracle/bin/python tests/oracle/sentencepiece_models.py

The models' ids are those of `sentencepiece`; `llama` are those of transformers' tokenizer of a LLaMA-2 folder. A control piece or
the name of a byte (`<s>`, `<0x41>`) written in a text is left out: `tokenizers`, and with it transformers, takes it for the token.
"""

import gzip
import io
import json
import random
import tempfile
from pathlib import Path

import sentencepiece as spm

OUT = Path(__file__).parents[2] / "src/core/data/goldens/sentencepiece"
WORDS = """the a of to and in is that it was for on are as with his they at be this from have or by one had not but what all were
when we there can an your which their said if do will each about how up out them then she many some so these would other into has
more her two like him see time could no make than first been its who now people my made over did down only way find use may water
long little very after words called just where most know Straße café naïve 数字 你好 世界 привет мир Ω 12 345 6789 foo() {x: 1}""".split()
TEXTS = """Hello world|the water of people|  two  blanks   and more |\ttab\nline|Straße café|你好 世界|привет мир!|ﬁne ½ Ⅷ ｆｕｌｌ|é e\u0301|🙂 smile 🙂🙂|
a\u200bb|x\u00a0y|12 345 6789|foo() {x: 1}|ΩΩΩ|ÄÖÜ äöü|▁under|a▁b|ﷺ|　wide　space　|trailing |. , ; : !?|UPPER lower MiXed|zzzzqqqq|ก็|한국어|𝔘𝔫𝔦|
\u0007bell|one\r\ntwo|-|' "quoted" '|supercalifragilistic""".replace("\n", "").split("|") + ["a\nb\n\nc", "tab\t\ttab", " lead", "the " * 40]
KINDS = {
    "unigram": dict(model_type="unigram", vocab_size=400),
    "unigram_bytes": dict(model_type="unigram", vocab_size=600, byte_fallback=True, normalization_rule_name="identity",
                          remove_extra_whitespaces=False),
    "bpe_bytes": dict(model_type="bpe", vocab_size=700, byte_fallback=True, normalization_rule_name="identity",
                      remove_extra_whitespaces=False),
    "bpe_identity": dict(model_type="bpe", vocab_size=400, normalization_rule_name="identity", add_dummy_prefix=False,
                         control_symbols=["<|ctrl|>"]),
}


def train(kind, rng):
    sentences = [" ".join(rng.choices(WORDS, k=rng.randint(2, 12))) for _ in range(3000)]
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=iter(sentences), model_writer=model, hard_vocab_limit=False,
                                   minloglevel=2, num_threads=1, **kind)
    return model.getvalue()


def main():
    rng = random.Random(7)
    OUT.mkdir(parents=True, exist_ok=True)
    cases = {}
    for name, kind in KINDS.items():
        model = train(kind, rng)
        (OUT / f"{name}.model.gz").write_bytes(gzip.compress(model, 9, mtime=0))
        processor = spm.SentencePieceProcessor(model_proto=model)
        cases[name] = [{"text": text, "ids": processor.encode(text)} for text in TEXTS]
        if name == "bpe_bytes":
            config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
                      "add_bos_token": True, "add_eos_token": False, "legacy": True,
                      "added_tokens_decoder": {str(processor.vocab_size() + index): {
                          "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False} for index, token in enumerate(["<|im_start|>", "<|im_end|>"])}}
            cases["llama_config"] = config
            cases["llama"] = llama(model, config)
    (OUT / "cases.json").write_text(json.dumps(cases, ensure_ascii=False, separators=(",", ":")))
    for path in sorted(OUT.iterdir()):
        print(path.name, path.stat().st_size)


def llama(model, config):
    from transformers import AutoTokenizer

    chats = ["<|im_start|>user\nHello water<|im_end|>\n<|im_start|>assistant\n你好<|im_end|>\n", "the people", "<s>x</s>y"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.model").write_bytes(model)
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))
        (Path(folder) / "config.json").write_text(json.dumps({"model_type": "llama"}))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return [{"text": text, "ids": tokenizer(text)["input_ids"]} for text in chats]


if __name__ == "__main__":
    main()
