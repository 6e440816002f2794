"""Writes masks.json: chat templates that mark what the assistant says, rendered by transformers 5.17, and where it speaks, in bytes:
python make_masks.py [FOLDER_OF_TEMPLATES OUT.json]

With a folder, its *.jinja are rendered as well, into another file: the test `other_templates` reads it (TEMPLATES=OUT.json).
"""

import json
import sys
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

OWN = {
    "plain": "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>"
    "{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}",
    "trimmed": """{%- for m in messages -%}
    {%- if m.role == 'assistant' -%}
        {{- '[A] ' -}}
        {%- generation -%}
            {{- m.content + eos_token -}}
        {%- endgeneration -%}
    {%- else -%}
        [{{ m.role | upper }}] {{ m.content }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}[A] {%- endif -%}""",
    "lines": """{% for m in messages %}
  {% if m.role == 'assistant' %}
  {% generation %}
    {{ m.content | trim }}
  {% endgeneration %}
  {% else %}
{{ m.role }}: {{ m.content }}
  {% endif %}
{% endfor %}
""",
}
CONVERSATIONS = [
    [("user", "Wie geht's?"), ("assistant", "Gut.")],
    [("system", "Be brief."), ("user", "數?"), ("assistant", " é数 <b> 7 "), ("user", "x\n\ny"), ("assistant", "z\n")],
]


def cases(name, source):
    for conversation in CONVERSATIONS:
        messages = [{"role": role, "content": content} for role, content in conversation]
        try:
            (text,), (spans,) = render_jinja_template(
                conversations=[messages], chat_template=source, return_assistant_tokens_mask=True, bos_token="<s>",
                eos_token="</s>", add_generation_prompt=False,
            )
        except Exception as error:
            text, spans = None, []
            print(name, repr(error)[:100])
        ranges = [[len(text[:at].encode()) for at in span] for span in spans]
        yield {"name": name, "template": source, "messages": messages, "text": text, "ranges": ranges}


here = Path(__file__).parent
(here / "masks.json").write_text(json.dumps([c for item in OWN.items() for c in cases(*item)], indent=0, ensure_ascii=False))
if len(sys.argv) > 2:
    files = sorted(Path(sys.argv[1]).glob("*.jinja"))
    other = [case for path in files for case in cases(path.name, path.read_text())]
    Path(sys.argv[2]).write_text(json.dumps(other))
