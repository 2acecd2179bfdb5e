"""Two demos on real data against a running service: private training, private daily queries."""

from streams.demo.entry import DemoReport, run_demo

__all__ = ["DemoReport", "run_demo"]
