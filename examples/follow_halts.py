"""Print every HALT event once, with nothing but a Kafka client.

    pip install kafka-python
    python follow_halts.py localhost:9092

A worker that takes over a partition publishes some decisions again, with the same offsets. So a
record counts if its offset is above the last one of its partition, or if it is a further part of
the same step.
"""

import json
import sys

from kafka import KafkaConsumer

consumer = KafkaConsumer(
    f"{sys.argv[2] if len(sys.argv) > 2 else 'turnstile.'}halts",
    bootstrap_servers=sys.argv[1],
    auto_offset_reset="earliest",
    consumer_timeout_ms=int(sys.argv[3]) if len(sys.argv) > 3 else float("inf"),
)
seen: dict[int, tuple[int, int]] = {}  # by partition: offset and part
for record in consumer:
    if not record.value or record.value[:1] != b"{":
        continue  # MessagePack: published with another setting
    answer = json.loads(record.value)
    if answer["type"] not in ("decision", "halted"):
        continue  # answers to other requests
    place = answer["offset"], answer.get("part", -1)
    if place <= seen.get(record.partition, (-1, -1)):
        continue
    seen[record.partition] = place
    events = answer["halted"] if answer["type"] == "decision" else answer["users"]
    if isinstance(events, str) or (events and not isinstance(events[0], dict)):
        print(f"step {answer['step']} of {answer['run']} halts more than 1,024 users")
        continue
    for event in events:
        print(answer["dataset"], answer["run"], answer["step"], event["user"], event["reason"])
