"""Demos on real data against a running service: private trainings, private daily queries."""

from streams.demo.entry import DemoReport, check_demo, run_demo

__all__ = ["DemoReport", "check_demo", "run_demo"]
