"""Writes seeds.json: draws by an independent implementation (`pip install blake3==1.0.11`, Python 3.11)."""

import json
import pathlib
import struct

from blake3 import blake3


def frame(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def seed(coordinates: list) -> bytes:
    data = frame(b"envace draw 1")
    for name, value in coordinates:
        value = struct.pack("<Q", value) if isinstance(value, int) else value.encode()
        data += frame(name.encode()) + frame(value)
    return blake3(data).digest()


def bits(key: bytes, index: int) -> int:
    return int.from_bytes(blake3(struct.pack("<Q", index), key=key).digest()[:8], "little")


def case(coordinates: list) -> dict:
    key = seed(coordinates)
    order = list(range(10))
    for i in range(9, 0, -1):
        j = bits(key, i) * (i + 1) >> 64
        order[i], order[j] = order[j], order[i]
    return {
        "coordinates": dict(coordinates),
        "seed": key.hex(),
        "bits": [str(bits(key, i)) for i in (0, 1, 1 << 40)],
        "uniform": [repr((bits(key, i) >> 11) / 2**53) for i in (0, 1, 1 << 40)],
        "below_1000": [bits(key, i) * 1000 >> 64 for i in (0, 1, 1 << 40)],
        "shuffled": order,
    }


CASES = [
    [("run_seed", 0), ("purpose", "task_order")],
    [("run_seed", 7), ("purpose", "generate"), ("step", 3), ("task_hash", "ab12"), ("sample", 0),
     ("role", "actor"), ("user_turn", 1), ("turn", 2), ("attempt", 0)],
    [("run_seed", 2**64 - 1), ("purpose", "é"), ("step", 1), ("task_hash", ""), ("sample", 2), ("trial", 3),
     ("role", "rehearsal"), ("user_turn", 4), ("turn", 5), ("call", 6), ("attempt", 7), ("vote", 8),
     ("position", 9)],
]

out = pathlib.Path(__file__).with_suffix(".json")
out.write_text(json.dumps([case(c) for c in CASES], indent=1, ensure_ascii=False) + "\n")
