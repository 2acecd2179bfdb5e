"""Print every HALT event once, with a plain Faust agent.

    pip install faust-streaming
    TURNSTILE_KAFKA=localhost:9092 python faust_halts.py

Faust goes on behind the offset that it committed. A worker that takes over a partition publishes
some decisions again: see follow_halts.py.
"""

import os

import faust

broker = os.environ.get("TURNSTILE_KAFKA", "localhost:9092")
app = faust.App("halts-printer", broker=f"kafka://{broker}", web_enabled=False)
prefix = os.environ.get("TURNSTILE_PREFIX", "turnstile.")
halts = app.topic(f"{prefix}halts", value_serializer="json")  # workers publish JSON by default
seen: dict[int, tuple[int, int]] = {}  # by partition: offset and part


@app.agent(halts)
async def print_halts(answers):
    """Print the HALT events of every decision; each value is a dict."""
    async for answer in answers:
        if answer["type"] != "decision":
            continue  # answers to other requests, and changes to rosters
        place = answer["offset"], answer.get("part", -1)
        if place <= seen.get(answer["partition"], (-1, -1)):
            continue
        seen[answer["partition"]] = place
        for halt in answer["halted"]:
            print(answer["dataset"], answer["step"], halt["user"], halt["reason"], flush=True)


if __name__ == "__main__":
    # `app.main()` would turn what the agent prints into log lines.
    faust.Worker(app, loglevel="warning", redirect_stdouts=False).execute_from_commandline()
