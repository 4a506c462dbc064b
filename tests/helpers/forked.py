"""Processes forked by a server that has imported everything and started no threads: quick, and safe."""

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["attendrop.runs.train", "helpers.ddp_worker"])
