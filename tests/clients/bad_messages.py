"""Sends a policy server what no client should send, and asks it for an action after each: it must answer with an error, and stay up.

    loongforge serve-policy --policy pads-expert --protocol openpi --port 8000 &
    python bad_messages.py --protocol openpi --port 8000          # or vla-eval, or loongforge

It needs numpy, msgpack and websockets. Prints what the server said to each message.
"""

import argparse
import functools

import msgpack
import numpy as np
from pads import HELD_OUT, Layout, Pads
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

BOMB = 65 << 20


def array(values, text_keys=False, **others):
    values = np.asarray(values)
    fields = dict(__ndarray__=True, data=values.tobytes(), dtype=values.dtype.str, shape=list(values.shape)) | others
    return fields if text_keys else {key.encode(): value for key, value in fields.items()}


class Client:
    """Messages of a protocol."""

    def __init__(self, protocol, picture):
        self.protocol, self.picture = protocol, picture
        self.text_keys = protocol == "vla-eval"

    def fields(self, **others):
        image = array(self.picture, self.text_keys)
        fields = dict(image=image, state=array(np.array([0.5, 0.5], np.float32), self.text_keys), prompt="go to the red pad") | others
        return {key: value for key, value in fields.items() if value is not None}

    def message(self, fields):
        if self.protocol == "openpi":
            return msgpack.packb(fields)
        if self.protocol == "vla-eval":
            return msgpack.packb(dict(type="observation", payload=fields, seq=3, timestamp=0.0))
        return msgpack.packb(dict(type="infer", request_id="r", protocol_version="1.0", payload=fields))

    def begun(self, port):
        """A connection on which an observation may follow."""
        socket = connect(f"ws://127.0.0.1:{port}", max_size=None, compression=None)
        if self.protocol == "vla-eval":
            socket.send(msgpack.packb(dict(type="hello", payload=dict(protocol_version=1), seq=0, timestamp=0.0)))
            socket.recv(timeout=20)
            socket.send(msgpack.packb(dict(type="episode_start", payload={}, seq=1, timestamp=0.0)))
        else:
            socket.recv(timeout=20)
        return socket


def said(client, answer):
    """The error of an answer; none where it has actions."""
    if isinstance(answer, str):
        return answer
    answer = msgpack.unpackb(answer, strict_map_key=False)
    if client.protocol == "openpi":
        return None if "actions" in answer else str(answer)
    if client.protocol == "vla-eval":
        return None if answer["type"] == "action" else answer["payload"]["error"]
    return None if answer["ok"] else answer["error"]["message"]


def nested(depth):
    """Lists within lists, as bytes: packers refuse so many."""
    return b"\x91" * depth + b"\xc0"


def bad_messages(client):
    good = client.fields()
    whole = client.message(good)
    floats = np.zeros((32, 32, 3), np.float64)
    wrong = lambda **fields: client.message(client.fields(**fields))
    own = lambda values, **others: array(values, client.text_keys, **others)
    state = np.array([0.5, 0.5], np.float32)
    return {
        "oversized": b"\xc4" + bytes(BOMB),
        "cut off": whole[:len(whole) // 2],
        "empty": b"",
        "text": "go to the red pad",
        "no map": msgpack.packb([1, 2, 3]),
        "nested": nested(100_000),
        "a field that is nested": wrong(gripper=functools.reduce(lambda inner, _: [inner], range(100), 1)),
        "dtype of objects": wrong(state=own(state, dtype="|O")),
        "dtype of complex numbers": wrong(state=own(state, dtype="<c8")),
        "a picture of complex numbers": wrong(image=own(client.picture, dtype="<c16")),
        "more shape than data": wrong(image=own(client.picture, shape=[32, 32, 4])),
        "a shape of 2^62": wrong(image=own(client.picture, shape=[1 << 31, 1 << 31, 3])),
        "a negative shape": wrong(state=own(state, shape=[-2])),
        "rank 40": wrong(state=own(state, shape=[1] * 39 + [2])),
        "a picture with values beyond 1": wrong(image=own(floats + 300)),
        "a state that is not finite": wrong(state=own(np.array([np.nan, 0.5], np.float32))),
        "a state of three": wrong(state=own(np.zeros(3, np.float32))),
        "no state": wrong(state=None),
        "a field that no rule knows": wrong(gripper=own(state)),
        "bytes behind it": whole + b"\xc0\xc0",
        "a length of 4 GiB": b"\xdb\xff\xff\xff\xff",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocol", choices=["openpi", "vla-eval", "loongforge"], required=True)
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    client = Client(args.protocol, Pads(Layout(1, HELD_OUT, 0)).picture())
    with client.begun(args.port) as patient:
        for name, message in bad_messages(client).items():
            with client.begun(args.port) as socket:
                try:
                    socket.send(message)
                    error = said(client, socket.recv(timeout=60))
                    assert error is not None, f"{name}: was answered with actions"
                except ConnectionClosed as closed:
                    error = f"closed with {closed.rcvd and closed.rcvd.code}: {closed.rcvd and closed.rcvd.reason}"
            # Another connection does not notice.
            patient.send(client.message(client.fields()))
            answer = said(client, patient.recv(timeout=60))
            assert answer is None, f"after {name}: {answer}"
            print(f"{name:<32} {error[:150]}")
    print("the server is up")


if __name__ == "__main__":
    main()
