"""Publish the norms of a step, one JSON record for each user, with nothing but a Kafka client.

    pip install kafka-python
    python norm_events.py localhost:9092 DATASET RUN STEP < norms.csv     # lines: user,norm

kafka-python hashes keys as the workers do. Other clients need a setting; see
docs/budgets/norm-events.md.
"""

import csv
import json
import sys

from kafka import KafkaProducer

broker, dataset, run, step, *prefix = sys.argv[1:]
producer = KafkaProducer(bootstrap_servers=broker)
topic = f"{prefix[0] if prefix else 'turnstile.'}norms"
about = {"type": "norm", "dataset": dataset, "run": run, "step": int(step)}
sent = []
for user, norm in csv.reader(sys.stdin):
    event = {**about, "user": user, "norm": float(norm)}
    sent.append(producer.send(topic, key=user.encode(), value=json.dumps(event).encode()))
producer.flush()
for each in sent:
    each.get()  # raises if the broker has not acknowledged it
