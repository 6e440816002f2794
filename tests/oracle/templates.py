"""Chats from a grammar and features of Jinja, rendered by transformers' own Jinja set-up:

/opt/oracle/bin/python tests/oracle/templates.py            writes src/core/data/goldens/templates.json.gz, 50 chats a template
/opt/oracle/bin/python tests/oracle/templates.py FOLDER     writes FOLDER/templates.json.gz with 1,000 chats a template, for
                                                            LOONGFORGE_TEMPLATES=FOLDER cargo xtask soak templates

The templates are written from the description of the published ones. `{% generation %}` marks what is to be learned; the program
is given the templates without these marks and has to find the same places.
"""

import collections
import copy
import gzip
import json
import random
import re
import sys
from pathlib import Path

import template_features
from template_sources import TEMPLATES
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

HERE = Path(__file__).parent
GOLDEN = HERE.parents[1] / "src/core/data/goldens/templates.json.gz"
WORDS = ["Hello", "world", "é数", "🙂", "<b>&amp;</b>", "line\nbreak", " blank ", "tab\tx", "'q'", '"qq"', "{x}", "</think>", "\\n", "0", "你好"]
ARGUMENTS = [{}, {"city": "Paris"}, {"a": 1, "b": [1.5, True, None]}, {"deep": {"é": "数\"'"}}, {"x": -3, "y": 1e20}, {"s": "a\nb"}]
TOOL = {"type": "function", "function": {"name": "f", "description": "Does é <it>", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Köln"]}, "n": {"type": "integer"}}, "required": ["city"]}}}


class Chat:
    """Draws a chat; `features` says what it has."""

    def __init__(self, rng, spec):
        self.rng, self.spec, self.features, self.calls = rng, spec, set(), 0

    def words(self, most=4):
        return " ".join(self.rng.choices(WORDS[:-1] if self.rng.random() < 0.7 else WORDS, k=self.rng.randint(1, most)))

    def has(self, feature, chance):
        if self.rng.random() < chance:
            self.features.add(feature)
            return True
        return False

    def text(self):
        text = self.words()
        if self.has("special token in a text", 0.15):
            text += self.rng.choice(self.spec["special"]) + self.words(1)
        return text

    def content(self):
        if self.has("empty turn", 0.06):
            return ""
        if self.spec["lists"] and self.has("list of parts", 0.2):
            return [{"type": "text", "text": self.text()} for _ in range(self.rng.randint(1, 3))]
        return self.text()

    def call(self):
        self.calls += 1
        arguments = copy.deepcopy(self.rng.choice(ARGUMENTS))
        if self.has("arguments as text", 0.25):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {"id": f"call_{self.calls}", "type": "function", "function": {"name": "f", "arguments": arguments}}

    def assistant(self, calls):
        message = {"role": "assistant", "content": self.content()}
        if calls:
            message["tool_calls"] = calls
            if self.has("null content", 0.6):
                message["content"] = None
            elif self.has("no content", 0.2):
                del message["content"]
        if self.has("reasoning", 0.25):
            message["reasoning_content"] = "\n" * self.rng.randint(0, 2) + self.words() + "\n"
        if self.has("weight", 0.15):
            message[self.rng.choice(["weight", "loss_mask"])] = self.rng.randint(0, 1)
        elif self.has("train", 0.1):
            message[self.rng.choice(["train", "training"])] = self.rng.random() < 0.5
        return message

    def draw(self):
        messages = []
        record = {"messages": messages}
        if self.has("system", 0.5):
            messages.append({"role": "system", "content": self.content()})
        else:
            self.features.add("no system")
        tools = self.has("tools", 0.5)
        if tools:
            record["tools"] = [TOOL] * self.rng.randint(1, 2)
        for _ in range(self.rng.randint(1, 3)):
            messages.append({"role": "user", "content": self.content()})
            if tools and self.has("call", 0.6):
                calls = [self.call()]
                while self.has("parallel calls", 0.3):
                    calls.append(self.call())
                messages.append(self.assistant(calls))
                if self.has("result", 0.9):
                    for call in calls:
                        messages.append({"role": "tool", "tool_call_id": call["id"], "name": "f", "content": self.words()})
                if not self.has("call at the end", 0.1):
                    messages.append(self.assistant([]))
            else:
                messages.append(self.assistant([]))
        if self.has("odd order", 0.08):
            messages.insert(self.rng.randrange(len(messages)), {"role": "user", "content": self.words()})
        if self.has("kwargs", 0.3):
            record["chat_template_kwargs"] = {self.rng.choice(self.spec["kwargs"]): self.rng.choice([True, False])}
        return record


LOSS_KEYS = ["weight", "loss_mask", "train", "training"]


def expected(record, spec):
    """The text with and without the prompt for an answer, and what is learned of it, in bytes."""
    messages = [{key: value for key, value in message.items() if key not in LOSS_KEYS} for message in record["messages"]]
    learned = [all(message.get(key, 1) for key in LOSS_KEYS) for message in record["messages"] if message["role"] == "assistant"]
    kwargs = dict(tools=record.get("tools"), **spec["tokens"], **record.get("chat_template_kwargs", {}))
    result = {"text": None, "prompt": None, "ranges": None}
    try:
        (text,), (spans,) = render_jinja_template(
            conversations=[messages], chat_template=spec["marked"], return_assistant_tokens_mask=True,
            add_generation_prompt=False, **kwargs)
    except Exception:
        return result
    assert text == _compile_jinja_template(spec["source"]).render(messages=messages, documents=None, add_generation_prompt=False, **kwargs)
    assert len(spans) == len(learned), (spans, messages)
    result["text"] = text
    try:
        result["prompt"] = _compile_jinja_template(spec["source"]).render(
            messages=messages, documents=None, add_generation_prompt=True, **kwargs)
    except Exception:
        pass
    at = lambda place: len(text[:place].encode())
    places = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    spans = [place(text, span, messages[:index], spec, kwargs) for span, index in zip(spans, places)]
    result["ranges"] = [[at(begin), at(end)] for (begin, end), learns in zip(spans, learned) if learns]
    return result


def place(text, span, before, spec, kwargs):
    """From where the answer would be generated, which may be behind an empty thought, to the token that closes it, which may be
    the next role's."""
    begin, end = span
    try:
        render = lambda adds: _compile_jinja_template(spec["source"]).render(
            messages=before, documents=None, add_generation_prompt=adds, **kwargs)
        header = render(True).removeprefix(render(False))
        for at in range(1, len(header)):
            if text[:begin].endswith(header[:at]) and text[begin:end].startswith(header[at:]):
                begin += len(header) - at
                break
    except Exception:
        pass
    if not any(text[:end].endswith(token) for token in spec["closing"]) or spec["source"].startswith("[gMASK]"):
        end += max([len(token) for token in spec["closing"] if text[end:].startswith(token)], default=0)
    return begin, end


def chats(name, spec, count, rng, seen):
    cases = []
    for _ in range(count):
        chat = Chat(rng, spec)
        record = chat.draw()
        case = {"record": record, **expected(record, spec)}
        chat.features.add("raises" if case["text"] is None else "renders")
        seen.update(chat.features)
        cases.append(case)
    return cases


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    count, features = (50, 400) if folder is None else (1000, 8000)
    rng, seen, templates = random.Random(15), collections.Counter(), []
    for name, spec in TEMPLATES.items():
        spec["marked"] = spec["source"]
        spec["source"] = re.sub(r"{%-? *(end)?generation *-?%}", lambda m: "", spec["source"])
        templates.append({"name": name, "source": spec["source"], "tokens": spec["tokens"], "special": spec["special"],
                          "closing": spec["closing"], "chats": chats(name, spec, count, rng, seen)})
    for feature, times in sorted(seen.items()):
        print(f"{times:6} chats: {feature}")
        assert times >= 20, f"{feature} occurs {times} times"
    out = {"templates": templates, "features": template_features.cases(features, rng), "context": template_features.CONTEXT}
    path = GOLDEN if folder is None else folder / "templates.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(out, ensure_ascii=False, separators=(",", ":")).encode(), 9, mtime=0))
    print(path, path.stat().st_size, "bytes;", sum(case["text"] is None for t in templates for case in t["chats"]), "chats raise,",
          sum(case[1] is None for case in out["features"]), "features raise of", len(out["features"]))


if __name__ == "__main__":
    main()
