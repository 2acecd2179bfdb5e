"""Reads from Redis how much the users of one partition have spent, without the package.

`turnstile balance` shows the same. A partition has these keys in Redis, among others
(``docs/reference/topics.md``). Numbers are little-endian, but for the 8 bytes of an offset;
everything else is MessagePack.

    pages     hash: name -> 8 bytes of offset, then the value: ``policy:DATASET``,
              ``run:DATASET/RUN``, ...; ``page:DATASET/N`` has users 4096 N to 4096 N + 4095,
              ``members:DATASET/RUN/N`` the members of a roster
    changes   list of deltas since the pages were written, each after 16 bytes of digest:
              ``[first, next, part, parts, delta]``

The state is the pages, then the deltas in order (``streams/store/layout.py``,
``streams/ledger/state.py``, ``streams/ledger/columns.py``). The reader does not check the digest of
the pages, and refuses partitions with rosters, whose charges accrue. Amounts are in units of
2^-44 of the measure (of mu squared for ``gdp``).
"""

from __future__ import annotations

import hashlib
import struct
import sys

import msgspec
import numpy as np
import redis


def read_spent(client: redis.Redis, partition: int, dataset: str, prefix: str = "turnstile."):
    """Return the offset of the next record, and user -> units spent, one number per order."""
    key, unpack = f"{prefix}{{norms-{partition}}}:", msgspec.msgpack.decode
    reading = client.pipeline(transaction=True)  # all keys as of one moment
    reading.hgetall(key + "meta").hgetall(key + "pages").lrange(key + "changes", 0, -1)
    meta, pages, changes = reading.execute()
    assert meta[b"layout"] == b"6", "another release wrote this state"
    names, users, spent, delta = [name.decode() for name in pages], {}, {}, b""

    def enrol(ids, first):
        ids = np.frombuffer(ids, "<i8").tolist() if isinstance(ids, bytes) else ids
        users.update(enumerate(ids, first))
        return len(ids)

    for name in (name for name in names if name.startswith(f"page:{dataset}/")):
        first = 4096 * int(name.split("/")[1])
        ids, columns = unpack(pages[name.encode()][8:])
        least, count, width, steps = struct.unpack_from("<qIBB", columns["spent~"])
        packed = np.frombuffer(columns["spent~"], np.uint8, offset=14).reshape(count, width)
        distances = np.pad(packed, ((0, 0), (0, 8 - width))).view("<i8")[:, 0]
        rows = (least + distances + steps * np.arange(count)).reshape(enrol(ids, first), -1)
        spent.update(enumerate(rows.tolist(), first))
    for entry in changes:
        assert entry[:16] == hashlib.sha256(bytes(4) + entry[16:]).digest()[:16], "damaged"
        _, _, part, parts, content = unpack(entry[16:])
        delta += content
        if part < parts - 1:  # a large delta has several entries
            continue
        (entries, accounts, *_), delta = unpack(delta), b""
        names += entries
        for _, ids, first, every, *_ in (one for one in accounts if one[0] == dataset):
            enrol(ids, first)
            for slots, columns, *span in every:
                slots = range(*span[0]) if span[0] else np.frombuffer(slots, "<u4").tolist()
                for rows in (columns[name] for name in columns if "spent" in name.split(" ")):
                    rows = np.frombuffer(rows, "<i8").reshape(-1, len(rows) // 8 // len(slots))
                    spent.update(zip(slots, rows.tolist(), strict=True))
    assert not any(name.startswith("roster:") for name in names), "use `turnstile balance`"
    return int(meta[b"next"]), {user: spent.get(slot, [0]) for slot, user in users.items()}


if __name__ == "__main__":
    url, number, name = sys.argv[1:]
    print(read_spent(redis.Redis.from_url(url), int(number), name))
