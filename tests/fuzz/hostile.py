"""Records that are built to take much time, memory or stack for their size.

Each maker takes a size, and returns a record of about that many bytes.
"""

from base64 import b64encode
from collections.abc import Callable

from tests.audit.auditor_rosters import cost_table_digest

_CHARGE = (
    b'{"v":1,"type":"charge","dataset":"a","run":"r","attempt":1,"step":STEP,'
    b'"users":%b,"norms":%b,"mechanism":"gaussian","scale":4.0}'
)
_ENROL = (
    b'{"v":1,"type":"enrol","dataset":"a","run":"r","attempt":1,"request":"t","first":%d,'
    b'"users":%b,"clip_norm":2.0,"levels":3}'
)
_STEP = (
    b'{"v":1,"type":"charge-roster","dataset":"a","run":"r","attempt":1,"step":STEP,"members":3,'
    b'"cost_table_digest":"%b","units":"%b","positions":"%b","levels":"%b","scale":4.0}'
)
_NORMS = b'{"v":1,"type":"norms","dataset":"a","run":"events","step":0,"users":%b,"norms":%b}'
_PACKED = b"\x84\xa4type\xa6charge\xa1v\x01\xa7dataset\xa1a\xa5users"


def hostile(name: str, size: int, step: int) -> bytes:
    """Return a record of ``HOSTILE``. Charges are for this step of run r of dataset a.

    Three users are enrolled in that run, at levels up to 3.
    """
    return HOSTILE[name](size).replace(b"STEP", b"%d" % step)


def _charge(users: bytes, norms: bytes = b"[]") -> bytes:
    """Return a charge in JSON with these users and norms."""
    return _CHARGE % (users, norms)


def _step(levels: bytes = b"", positions: bytes = b"", units: bytes = bytes(32)) -> bytes:
    """Return a roster step in JSON with these packed arrays."""
    return _STEP % tuple(map(b64encode, (cost_table_digest(units), units, positions, levels)))


def _list(member: str, size: int, last: str | None = None) -> bytes:
    one = member.encode()
    members = [one] * (size // (len(one) + 1))
    return b"[" + b",".join([*members, (last or member).encode()]) + b"]"


def _listed(count: int, form: str = "{}") -> bytes:
    return ("[" + ",".join(map(form.format, range(count))) + "]").encode()


def _quoted(text: str, times: int) -> str:
    return '"' + text * times + '"'


HOSTILE: dict[str, Callable[[int], bytes]] = {
    "a list of 4 billion": lambda size: _PACKED + b"\xdd\xff\xff\xff\xff" + b"\x01" * size,
    "a map of 4 billion": lambda size: b"\xdf\xff\xff\xff\xff" + b"\xa1v\x01" * (size // 3),
    "4 GiB of octets": lambda size: _PACKED + b"\xc6\xff\xff\xff\xff" + bytes(size),
    "4 GiB of text": lambda size: _PACKED + b"\x91\xdb\xff\xff\xff\xff" + b"a" * size,
    "4 GiB of something else": lambda size: _PACKED + b"\xc9\xff\xff\xff\xff\x01" + bytes(size),
    "lists in lists": lambda size: _PACKED + b"\x91" * size,
    "maps in maps": lambda size: b"\x81\xa1v" * (size // 3),
    "lists in lists in JSON": lambda size: _charge(b"[" * size),
    "maps in maps in JSON": lambda size: b'{"v":' * (size // 5),
    "blanks": lambda size: _charge(b"[" + b" " * size + b"]"),
    "an integer of many digits": lambda size: _charge(b"[" + b"9" * size + b"]"),
    "a version of many digits": lambda size: b'{"v":' + b"9" * size + b"}",
    "a norm of many digits": lambda size: _charge(b"[1]", b"[0." + b"1" * size + b"]"),
    "an exponent of many digits": lambda size: _charge(b"[1]", b"[1e" + b"9" * size + b"]"),
    "a long name": lambda size: _charge(b'["' + b"a" * size + b'"]'),
    "half a character": lambda size: _charge(b'["' + rb"\ud800" * (size // 6) + b'"]'),
    "characters that are none": lambda size: _charge(b'["' + b"\xff" * size + b'"]'),
    "a field again and again": lambda size: b'{"v":1,"type":"charge"' + b',"v":1' * (size // 6),
    "unknown fields": lambda size: b"{" + b'"n":0,' * (size // 6) + b'"n":0}',
    "many integers": lambda size: _charge(_listed(size // 8)),
    "many users": lambda size: _charge(_listed(size // 16), _listed(size // 16)),
    "many users, packed": lambda size: _charge(
        b'"' + b"A" * (size // 64 * 32) + b'"', b'"' + b"A" * (size // 64 * 32) + b'"'
    ),
    "one user again and again": lambda size: _charge(_list("1", size // 2), _list("1", size // 2)),
    "one name again and again": lambda size: _charge(
        _list('"a"', size // 2), _list("0.5", size // 2)
    ),
    "many names": lambda size: _charge(_listed(size // 20, '"é{}"'), _listed(size // 20)),
    "an irregular name among many": lambda size: _charge(_list('"é"', size, '"e\u0308"')),
    "accents": lambda size: _charge(_list(_quoted("\u0300\u0316", 100), size)),
    "accents beyond Unicode 3.2": lambda size: _charge(
        _list(_quoted("\u0358\U0001f9ee", 90), size)
    ),
    "escaped names": lambda size: _charge(_list(_quoted(r"\u0061", 200), size)),
    "many norms": lambda size: _charge(b"[1]", _list("1", size)),
    "norms that are not numbers": lambda size: _charge(b"[1]", _list("1", size, "null")),
    "many events": lambda size: _NORMS % (_listed(size // 16 + 1), _list("1", size // 16 * 2)),
    "a norm of a user of many characters": lambda size: (
        b'{"v":1,"type":"norm","dataset":"a","run":"events","step":0,"user":"%b","norm":1}'
        % (b"a" * size)
    ),
    "many units": lambda size: _step(units=bytes(size // 32 * 24)),
    "many levels": lambda size: _step(levels=bytes(size // 4 * 3)),
    "many positions": lambda size: _step(bytes(size // 8), bytes(size // 8 * 4)),
    "many positions beyond the roster": lambda size: _step(
        bytes(size // 8), b"".join(i.to_bytes(4, "little") for i in range(size // 8))
    ),
    "many members": lambda size: _ENROL % (3, b'"' + b64encode(bytes(size // 32 * 24)) + b'"'),
    "many members, sent again": lambda size: _ENROL % (0, _listed(size // 8)),
    "many members by name, one twice": lambda size: (
        _ENROL % (3, _listed(size // 20, '"é{}"')[:-1] + b',"same","same"]')
    ),
    "a member of many characters": lambda size: _ENROL % (3, b'["' + b"a" * size + b'"]'),
}
