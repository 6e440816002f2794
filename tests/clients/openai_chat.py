"""Asks a language model through the `openai` package, which is not changed: what it reads of answers, streams and errors.

    loongforge serve runs/my --port 8000 --name tiny
    python openai_chat.py --port 8000 --model tiny --picture 4071.png     # and --key, where the server has one

Needs openai 3.54.0. Prints one line of JSON.
"""

import argparse
import base64
import json

import openai


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", required=True)
    parser.add_argument("--key", default="none")
    parser.add_argument("--picture")
    parser.add_argument("--prompt", default="Say 1.")
    args = parser.parse_args()
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{args.port}/v1", api_key=args.key, max_retries=0)
    found = {"models": [model.id for model in client.models.list()], "model": client.models.retrieve(args.model).id}
    messages = [{"role": "user", "content": args.prompt}]

    whole = client.chat.completions.create(model=args.model, messages=messages, temperature=0, max_tokens=24)
    found["text"], found["finish"] = whole.choices[0].message.content, whole.choices[0].finish_reason
    found["usage"] = [whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens]

    pieces, finish, usage = [], None, None
    with client.chat.completions.create(
        model=args.model, messages=messages, temperature=0, max_completion_tokens=24, stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                finish = choice.finish_reason or finish
            usage = chunk.usage or usage
    found["streamed"], found["streamed_finish"], found["num_pieces"] = "".join(pieces), finish, len(pieces)
    found["streamed_usage"] = [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens]

    # The answer of one turn is the history of the next.
    turns = messages + [whole.choices[0].message.model_dump(), {"role": "user", "content": "And 2?"}]
    found["turns"] = client.chat.completions.create(model=args.model, messages=turns, temperature=0, max_tokens=4).usage.prompt_tokens

    draw = lambda seed: client.chat.completions.create(
        model=args.model, messages=messages, temperature=1, top_p=0.9, seed=seed, max_tokens=24,
        extra_body={"top_k": 50, "min_p": 0.01, "repetition_penalty": 1.1},
    ).choices[0].message.content
    found["seeds"] = [draw(1), draw(1), draw(2)]

    continued = client.completions.create(model=args.model, prompt=args.prompt, temperature=0, max_tokens=8)
    found["continued"] = continued.choices[0].text
    found["continued_streamed"] = "".join(
        chunk.choices[0].text
        for chunk in client.completions.create(model=args.model, prompt=args.prompt, temperature=0, max_tokens=8, stream=True)
    )
    if args.picture:
        with open(args.picture, "rb") as file:
            url = "data:image/png;base64," + base64.b64encode(file.read()).decode()
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "Read the number."}]
        seen = client.chat.completions.create(
            model=args.model, messages=[{"role": "user", "content": parts}], temperature=0, max_tokens=8
        )
        found["seen"] = seen.choices[0].message.content

    scored = client.chat.completions.create(
        model=args.model, messages=messages, temperature=0, max_tokens=8, logprobs=True, top_logprobs=2
    )
    entries = scored.choices[0].logprobs.content
    found["scored"] = [[entry.token, entry.logprob] for entry in entries]
    found["most_likely"] = [[entry.top_logprobs[0].token, entry.top_logprobs[0].logprob] for entry in entries]
    streamed = client.chat.completions.create(
        model=args.model, messages=messages, temperature=0, max_tokens=8, logprobs=True, stream=True
    )
    told = [chunk.choices[0].logprobs for chunk in streamed]
    found["scored_streamed"] = [[entry.token, entry.logprob] for part in told if part for entry in part.content]
    lists = client.completions.create(model=args.model, prompt=[args.prompt, "Once"], temperature=0, max_tokens=8, logprobs=1)
    found["lists"] = [[choice.index, choice.text, len(choice.logprobs.tokens)] for choice in lists.choices]

    refused = []
    for change in [{"n": 100}, {"top_logprobs": 2}, {"tool_choice": "required"}, {"response_format": {"type": "json_object"}}, {"max_tokens": 10**7}]:
        try:
            client.chat.completions.create(model=args.model, messages=messages, **change)
        except openai.BadRequestError as error:
            refused.append(error.param)
    try:
        # The model hears nothing.
        client.audio.transcriptions.create(model=args.model, file=("a.wav", b"RIFF"), response_format="json")
    except openai.BadRequestError as error:
        refused.append(error.param)
    try:
        client.chat.completions.create(model="other", messages=messages)
    except openai.NotFoundError as error:
        refused.append(error.code)
    try:
        client.with_options(api_key="wrong").models.list()
    except openai.AuthenticationError as error:
        refused.append(error.code)
    found["refused"] = refused
    print(json.dumps(found))


if __name__ == "__main__":
    main()
